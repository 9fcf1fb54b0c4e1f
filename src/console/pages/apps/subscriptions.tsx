/** An app's own subscriptions: they hear of the events of everybody who allowed the app. */

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
  const newLink = (
    <ButtonLink look="primary" to="/subscriptions/new" search={{ app: app.client_id }}>
      <Plus size={16} aria-hidden /> Subscribe a URL
    </ButtonLink>
  );
  return (
    <div className="stack">
      {data.items.length > 0 && <div className="row">{newLink}</div>}
      <div className="card">
        {data.items.length > 0 ? (
          <SubscriptionTable subscriptions={data.items} />
        ) : (
          <Empty icon={Webhook} title="The app hears of nothing yet" action={newLink}>
            Subscribe a URL: it gets the events of every user who allowed the app, within what each of them
            allowed.
          </Empty>
        )}
      </div>
    </div>
  );
}
