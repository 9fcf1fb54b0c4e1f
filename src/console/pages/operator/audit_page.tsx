/** The audit log, filtered by kind, account, app and time. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { useSearch } from '@tanstack/react-router';
import { useDeferredValue, useState } from 'react';
import { adminListQuery } from '../../api/admin.ts';
import type { AuditEntry } from '../../api/generated.ts';
import { type Column, DataTable } from '../../ui/data_table.tsx';
import { SelectField, TextField } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { formatExact } from '../../ui/time.tsx';
import type { AuditSearch } from './audit_search.ts';
import { AccountName, ClientName } from './names.tsx';

const dayMs = 86_400_000;
const ranges = [
  { id: '0', title: 'All time' },
  { id: '1', title: 'Last 24 hours' },
  { id: '7', title: 'Last 7 days' },
  { id: '30', title: 'Last 30 days' },
];

/** A link can preset the account or app. */
export function AuditPage() {
  const search = useSearch({ from: '/operator/audit' });
  return <AuditLog key={JSON.stringify(search)} {...search} />;
}

function AuditLog({ account: firstAccount = '', client: firstClient = '' }: AuditSearch) {
  const [kind, setKind] = useState('');
  const [account, setAccount] = useState(firstAccount);
  const [client, setClient] = useState(firstClient);
  const [days, setDays] = useState('0');
  const [since, setSince] = useState('');
  const filter = {
    kind: useDeferredValue(kind.trim()),
    account: useDeferredValue(account.trim()),
    client: useDeferredValue(client.trim()),
    since,
  };
  const query = useInfiniteQuery(adminListQuery('GET /admin/audit', filter));
  return (
    <Page title="Audit log" description="Who did what, and when.">
      <div className="filters">
        <TextField
          label="Kind begins with"
          type="search"
          value={kind}
          onChange={setKind}
          placeholder="grant"
          isMono
        />
        <TextField label="Account ID" type="search" value={account} onChange={setAccount} isMono />
        <TextField label="Client ID" type="search" value={client} onChange={setClient} isMono />
        <SelectField
          label="Time"
          value={days}
          onChange={(next) => {
            setDays(next);
            setSince(next === '0' ? '' : new Date(Date.now() - Number(next) * dayMs).toISOString());
          }}
          choices={ranges}
        />
      </div>
      <DataTable query={query} columns={columns} keyOf={({ id }) => id} nothing="No matching entries" />
    </Page>
  );
}

const columns: readonly Column<AuditEntry>[] = [
  {
    title: 'Kind',
    isMain: true,
    show: ({ kind, at }) => (
      <>
        <code>{kind}</code>
        <p className="soft small nowrap">{formatExact(at)}</p>
      </>
    ),
  },
  {
    title: 'Who',
    show: ({ account, account_name: name, ...entry }) => (
      <div>
        {account !== null && <AccountName id={account} name={name} />}
        <Actor entry={{ account, ...entry }} />
      </div>
    ),
  },
  {
    title: 'App',
    show: ({ client, client_name: name }) => (client === null ? '–' : <ClientName id={client} name={name} />),
  },
  { title: 'Details', isMain: true, show: ({ details }) => <Details details={details} /> },
];

const clientPrefix = 'client:';

/** Who did it, if that was not the account itself. */
function Actor({ entry }: { entry: Pick<AuditEntry, 'account' | 'actor' | 'actor_name'> }) {
  const { account, actor, actor_name: name } = entry;
  if (actor === null || actor === account) return account === null ? '–' : null;
  const client = actor.startsWith(clientPrefix) ? actor.slice(clientPrefix.length) : null;
  return (
    <p className={account === null ? undefined : 'small'}>
      {account !== null && <span className="soft">by </span>}
      {client !== null ? <ClientName id={client} name={name} /> : <AccountName id={actor} name={name} />}
    </p>
  );
}

function writeValue(value: unknown): string {
  if (Array.isArray(value) && value.every((each) => typeof each === 'string')) return value.join(' ');
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function Details({ details }: { details: object }) {
  return (
    <dl className="entry-details small">
      {Object.entries(details)
        .filter(([, value]) => value !== null)
        .map(([name, value]) => (
          <div key={name}>
            <dt className="soft">{name.replaceAll('_', ' ')}</dt>{' '}
            <dd className="mono">{writeValue(value)}</dd>
          </div>
        ))}
    </dl>
  );
}
