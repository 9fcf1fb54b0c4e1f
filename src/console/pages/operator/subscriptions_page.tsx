/** All subscriptions, with a filter for failing ones. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { adminListQuery } from '../../api/admin.ts';
import type { AdminSubscription } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { type Column, DataTable } from '../../ui/data_table.tsx';
import { SelectField } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { Ago } from '../../ui/time.tsx';
import { KindTags } from '../subscriptions/list_page.tsx';
import { explainDisabled, SubscriptionBadge } from '../subscriptions/state_badge.tsx';
import { Action } from './action.tsx';
import { AccountName, ClientName } from './names.tsx';

const choices = [
  { id: 'all', title: 'All' },
  { id: 'failing', title: 'Failing' },
  { id: 'active', title: 'Active' },
  { id: 'disabled', title: 'Paused' },
];

const filters: Readonly<Record<string, Record<string, string>>> = {
  all: {},
  failing: { failing: 'true' },
  active: { state: 'active' },
  disabled: { state: 'disabled' },
};

export function AllSubscriptionsPage() {
  const [chosen, setChosen] = useState('all');
  const query = useInfiniteQuery(adminListQuery('GET /admin/subscriptions', filters[chosen] ?? {}));
  return (
    <Page title="All subscriptions" description="Every subscription on this server.">
      <div className="filters">
        <SelectField label="Show" value={chosen} onChange={setChosen} choices={choices} />
      </div>
      <DataTable query={query} columns={columns} keyOf={({ id }) => id} nothing="No matching subscriptions" />
    </Page>
  );
}

const columns: readonly Column<AdminSubscription>[] = [
  {
    title: 'URL',
    isMain: true,
    show: ({ id, url }) => (
      <>
        <strong className="breakable">{url ?? 'Read by the app'}</strong>
        <p className="soft small mono">{id}</p>
      </>
    ),
  },
  { title: 'Kinds', isMain: true, show: ({ kinds }) => <KindTags kinds={kinds} /> },
  {
    title: 'Owner',
    show: ({ client, client_name: clientName, account, account_name: accountName }) => (
      <div>
        {client !== null && <ClientName id={client} name={clientName} />}
        {account !== null && (
          <p className={client === null ? undefined : 'small'}>
            {client !== null && <span className="soft">for </span>}
            <AccountName id={account} name={accountName} />
          </p>
        )}
      </div>
    ),
  },
  {
    title: 'State',
    show: (subscription) => (
      <span>
        <SubscriptionBadge subscription={subscription} />
        {subscription.state === 'disabled' && (
          <p className="soft small">{explainDisabled(subscription.disabled_reason)}</p>
        )}
        {subscription.disables_at !== null && (
          <p className="soft small">
            Disabled <Ago time={subscription.disables_at} />
          </p>
        )}
      </span>
    ),
  },
  {
    title: '',
    show: ({ id, url, state }) =>
      state === 'active' && (
        <Action
          title="Disable"
          of={url ?? id}
          isDanger
          question="Disable this subscription?"
          done="Subscription disabled."
          onConfirm={() => request('POST /admin/subscriptions/{id}/disable', { path: { id }, body: {} })}
        >
          {url === null ? 'The app can no longer read its events.' : `Deliveries to ${url} stop.`} Events are
          held, and the owner can resume the subscription.
        </Action>
      ),
  },
];
