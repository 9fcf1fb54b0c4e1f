/** Connections of all apps, found by the request id that an error page shows. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { useDeferredValue, useState } from 'react';
import { adminConnectionsQuery } from '../../api/admin.ts';
import type { AdminConnection } from '../../api/generated.ts';
import { SelectField, TextField } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { ConnectionList } from '../connections/connection_list.tsx';
import { AccountName, ClientName } from './names.tsx';

const outcomes = [
  { id: '', title: 'All' },
  { id: 'refused', title: 'Refused' },
  { id: 'open', title: 'Not finished' },
  { id: 'connected', title: 'Connected' },
];

const requestIdForm = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export function ConnectionsPage() {
  const [request, setRequest] = useState('');
  const [client, setClient] = useState('');
  const [outcome, setOutcome] = useState('');
  const requestId = useDeferredValue(request.trim());
  const isIncomplete = requestId !== '' && !requestIdForm.test(requestId);
  const filter = {
    request: isIncomplete ? '' : requestId,
    client: useDeferredValue(client.trim()),
    outcome,
  };
  const query = useInfiniteQuery(adminConnectionsQuery(filter));
  return (
    <Page title="Connections" description="What happened when apps tried to connect, newest first.">
      <div className="filters">
        <TextField
          label="Request ID"
          type="search"
          value={request}
          onChange={setRequest}
          placeholder="From an error page"
          error={isIncomplete ? 'A request ID looks like 01a20cd6-40b3-762b-872c-b6efa694af88.' : null}
          isMono
        />
        <TextField label="Client ID" type="search" value={client} onChange={setClient} isMono />
        <SelectField label="Outcome" value={outcome} onChange={setOutcome} choices={outcomes} />
      </div>
      <ConnectionList
        query={query}
        isFiltered={Object.values(filter).some((value) => value !== '')}
        nameOf={({ client, client_name: name }) => name ?? client ?? 'Unknown app'}
        about={(connection) => <About connection={connection} />}
      />
    </Page>
  );
}

function About({ connection }: { connection: AdminConnection }) {
  const { client, client_name: name, account, account_name: accountName } = connection;
  // The line above says so.
  if (client === null && account === null) return null;
  return (
    <p className="row connection-of">
      {client === null ? <span>Unknown app</span> : <ClientName id={client} name={name} />}
      {account !== null && <AccountName id={account} name={accountName} />}
    </p>
  );
}
