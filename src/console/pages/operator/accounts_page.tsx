/** All accounts, searched by the start of their email address. */

import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { Link, useSearch } from '@tanstack/react-router';
import { useDeferredValue, useState } from 'react';
import { accountQuery, adminListQuery } from '../../api/admin.ts';
import type { AdminAccount } from '../../api/generated.ts';
import { userQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Badge } from '../../ui/badge.tsx';
import { type Column, DataTable } from '../../ui/data_table.tsx';
import { SelectField, TextField } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { Ago } from '../../ui/time.tsx';
import { Action } from './action.tsx';

const states = [
  { id: '', title: 'All' },
  { id: 'active', title: 'Active' },
  { id: 'disabled', title: 'Disabled' },
];

/** A link can name one account. */
export function AccountsPage() {
  const { account } = useSearch({ from: '/operator/accounts' });
  return account === undefined ? <AllAccounts /> : <OneAccount id={account} />;
}

function OneAccount({ id }: { id: string }) {
  const query = useInfiniteQuery(accountQuery(id));
  return (
    <Page title="Account" crumbs={[{ title: 'Accounts', to: '/operator/accounts' }]}>
      <DataTable query={query} columns={columns} keyOf={(account) => account.id} nothing="No such account" />
    </Page>
  );
}

function AllAccounts() {
  const [email, setEmail] = useState('');
  const [state, setState] = useState('');
  const filter = { email: useDeferredValue(email.trim()), state };
  const query = useInfiniteQuery(adminListQuery('GET /admin/accounts', filter));
  return (
    <Page title="Accounts" description="Everyone who can sign in.">
      <div className="filters">
        <TextField label="Email begins with" type="search" value={email} onChange={setEmail} />
        <SelectField label="State" value={state} onChange={setState} choices={states} />
      </div>
      <DataTable query={query} columns={columns} keyOf={({ id }) => id} nothing="No matching accounts" />
    </Page>
  );
}

const columns: readonly Column<AdminAccount>[] = [
  {
    title: 'Account',
    isMain: true,
    show: ({ id, external_id: externalId, name, email }) => (
      <>
        <strong>{name}</strong>
        <p className="soft small">{email}</p>
        {externalId !== null && <p className="soft small">External id {externalId}</p>}
        <p className="soft small mono">{id}</p>
      </>
    ),
  },
  {
    title: 'State',
    show: ({ state, is_admin: isAdmin }) => (
      <span className="row">
        <Badge look={state === 'active' ? 'good' : 'bad'}>{state}</Badge>
        {isAdmin && <Badge look="info">admin</Badge>}
      </span>
    ),
  },
  { title: 'Created', show: ({ created_at: at }) => <Ago time={at} /> },
  {
    title: '',
    show: (account) => (
      <span className="row row-end">
        <Link
          to="/operator/audit"
          search={{ account: account.id }}
          aria-label={`Audit log of ${nameOf(account)}`}
        >
          Audit log
        </Link>
        <AccountAction account={account} />
      </span>
    ),
  },
];

/** External accounts may have no email address. */
function nameOf({ id, external_id: externalId, email }: AdminAccount): string {
  return email ?? externalId ?? id;
}

function AccountAction({ account }: { account: AdminAccount }) {
  const { id, state } = account;
  const name = nameOf(account);
  const path = { id };
  const { data: user } = useQuery(userQuery);
  // The server refuses it too: administrators cannot lock themselves out.
  if (user?.sub === id) return <span className="soft small">you</span>;
  if (state === 'disabled') {
    return (
      <Action
        title="Enable"
        of={name}
        question={`Enable ${name}?`}
        done={`${name} can sign in again.`}
        onConfirm={() => request('POST /admin/accounts/{id}/enable', { path, body: {} })}
      >
        They can sign in again. Apps must be connected again.
      </Action>
    );
  }
  return (
    <Action
      title="Disable"
      of={name}
      isDanger
      question={`Disable ${name}?`}
      done={`${name} is disabled.`}
      onConfirm={() => request('POST /admin/accounts/{id}/disable', { path, body: {} })}
    >
      They are signed out everywhere and cannot sign in. All their apps are disconnected.
    </Action>
  );
}
