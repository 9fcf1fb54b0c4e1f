/** The deliveries of a selected subscription. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { Webhook } from 'lucide-react';
import { subscriptionsQuery } from '../../api/queries.ts';
import { SelectField } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { nameOf } from '../subscriptions/list_page.tsx';
import { NoSubscriptionsYet } from '../subscriptions/none_yet.tsx';
import { DeliveryLog } from './log.tsx';

export function DeliveriesPage() {
  return (
    <Page title="Deliveries" description="Every delivery, with its attempts and responses.">
      <ChooseSubscription />
    </Page>
  );
}

function ChooseSubscription() {
  const { data, error, refetch } = useInfiniteQuery(subscriptionsQuery);
  const { subscription } = useSearch({ from: '/deliveries' });
  const navigate = useNavigate();
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const subscriptions = data.pages.flatMap((page) => page.items);
  const chosen = subscriptions.find(({ id }) => id === subscription) ?? subscriptions[0];
  if (chosen === undefined) {
    return (
      <div className="card">
        <NoSubscriptionsYet icon={Webhook}>
          Create a subscription to see its deliveries here.
        </NoSubscriptionsYet>
      </div>
    );
  }
  return (
    <div className="stack">
      <SelectField
        label="Subscription"
        value={chosen.id}
        onChange={(id) => void navigate({ to: '/deliveries', search: { subscription: id }, replace: true })}
        choices={subscriptions.map((each) => ({
          id: each.id,
          title:
            each.description === '' || each.url === null ? nameOf(each) : `${each.description} (${each.url})`,
        }))}
      />
      <DeliveryLog key={chosen.id} id={chosen.id} />
    </div>
  );
}
