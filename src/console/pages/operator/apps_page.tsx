/** All apps, to verify or suspend. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useDeferredValue, useState } from 'react';
import { adminListQuery } from '../../api/admin.ts';
import type { AdminApp } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { type Column, DataTable } from '../../ui/data_table.tsx';
import { SelectField, TextField } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { Ago } from '../../ui/time.tsx';
import { AppBadge } from '../apps/app_badge.tsx';
import { AppLogo } from '../apps/app_logo.tsx';
import { Action } from './action.tsx';

const states = [
  { id: '', title: 'All' },
  { id: 'unverified', title: 'Unverified' },
  { id: 'verified', title: 'Verified' },
  { id: 'suspended', title: 'Suspended' },
];

const origins = [
  { id: '', title: 'All' },
  { id: 'account', title: 'User' },
  { id: 'operator', title: 'Operator' },
  { id: 'registration', title: 'Dynamic registration' },
  { id: 'document', title: 'Metadata document' },
];

export function AllAppsPage() {
  const [name, setName] = useState('');
  const [state, setState] = useState('');
  const [origin, setOrigin] = useState('');
  const filter = { name: useDeferredValue(name.trim()), state, origin };
  const query = useInfiniteQuery(adminListQuery('GET /admin/apps', filter));
  return (
    <Page title="All apps" description="Every app on this server.">
      <div className="filters">
        <TextField label="Name begins with" type="search" value={name} onChange={setName} />
        <SelectField label="State" value={state} onChange={setState} choices={states} />
        <SelectField label="Origin" value={origin} onChange={setOrigin} choices={origins} />
      </div>
      <DataTable
        query={query}
        columns={columns}
        keyOf={({ client_id: id }) => id}
        nothing="No matching apps"
      />
    </Page>
  );
}

const columns: readonly Column<AdminApp>[] = [
  {
    title: 'App',
    isMain: true,
    show: ({ client_id: id, client_name: name, client_uri: uri, ...app }) => (
      <span className="named">
        <AppLogo app={{ ...app, client_name: name }} />
        <span>
          <Link className="table-link" to="/apps/$id" params={{ id }}>
            {name}
          </Link>
          <p className="soft small">{uri}</p>
          <p className="soft small mono row-id">{id}</p>
        </span>
      </span>
    ),
  },
  { title: 'State', show: ({ state }) => <AppBadge state={state} /> },
  {
    title: 'Origin',
    show: ({ origin }) => origins.find(({ id }) => id === origin)?.title ?? origin,
  },
  { title: 'Created', show: ({ created_at: at }) => <Ago time={at} /> },
  {
    title: '',
    show: (app) => (
      <span className="row row-end">
        <Link
          to="/operator/audit"
          search={{ client: app.client_id }}
          aria-label={`Audit log of ${app.client_name}`}
        >
          Audit log
        </Link>
        <AppActions app={app} />
      </span>
    ),
  },
];

function AppActions({ app }: { app: AdminApp }) {
  const { client_id: id, client_name: name, state, origin } = app;
  const input = (reason: string) => ({ path: { id }, body: reason === '' ? {} : { reason } });
  if (state === 'suspended') {
    return (
      <Action
        title="Reinstate"
        of={name}
        hasReason
        question={`Reinstate ${name}?`}
        done={`${name} reinstated.`}
        onConfirm={(reason) => request('POST /admin/apps/{id}/reinstate', input(reason))}
      >
        It can get tokens again for users who are still connected.
      </Action>
    );
  }
  return (
    <>
      {state === 'unverified' && (
        <Action
          title="Verify"
          of={name}
          hasReason
          question={`Verify ${name}?`}
          done={`${name} is verified.`}
          onConfirm={(reason) => {
            // Verify the version that the page shows.
            const { path, body } = input(reason);
            return request('POST /admin/apps/{id}/verify', {
              path,
              body: { ...body, updated_at: app.updated_at },
            });
          }}
        >
          Users see that you verified this app.
        </Action>
      )}
      {/* Apps of the operator count as verified. */}
      {state === 'verified' && origin !== 'operator' && (
        <Action
          title="Unverify"
          of={name}
          hasReason
          question={`Unverify ${name}?`}
          done={`${name} is unverified.`}
          onConfirm={(reason) => request('POST /admin/apps/{id}/unverify', input(reason))}
        >
          It keeps working. Users see that it is not verified.
        </Action>
      )}
      <Action
        title="Suspend"
        of={name}
        isDanger
        hasReason
        question={`Suspend ${name}?`}
        done={`${name} is suspended.`}
        onConfirm={(reason) => request('POST /admin/apps/{id}/suspend', input(reason))}
      >
        Its tokens stop working within a second, and so do its deliveries.
      </Action>
    </>
  );
}
