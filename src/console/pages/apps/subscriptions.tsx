/** The app's own subscriptions, with the events of all users who connected it. */

import { useQuery } from '@tanstack/react-query';
import { Plus, Webhook } from 'lucide-react';
import { appSubscriptionsQuery } from '../../api/apps.ts';
import type { App } from '../../api/generated.ts';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty, Failure, Skeletons } from '../../ui/states.tsx';
import { SubscriptionTable } from '../subscriptions/list_page.tsx';

export function AppSubscriptions({ app }: { app: App }) {
  const { data, error, refetch } = useQuery(appSubscriptionsQuery(app.client_id));
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const link = (
    <ButtonLink look="primary" to="/subscriptions/new" search={{ app: app.client_id }}>
      <Plus size={16} aria-hidden /> New subscription
    </ButtonLink>
  );
  if (data.items.length === 0) {
    return (
      <div className="card">
        <Empty icon={Webhook} title="No subscriptions yet" action={link}>
          An app’s subscription receives the events of every user who connected the app, within the scopes
          that they allowed.
        </Empty>
      </div>
    );
  }
  return (
    <div className="stack">
      <div className="row-between">
        <p className="soft">
          They receive the events of every user who connected the app, within the scopes that they allowed.
        </p>
        {link}
      </div>
      <div className="card table-scroll">
        <SubscriptionTable subscriptions={data.items} />
      </div>
    </div>
  );
}
