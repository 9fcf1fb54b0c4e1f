/** The health of the user's subscriptions and apps. Highlights failing subscriptions. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { HeartPulse } from 'lucide-react';
import { appsQuery } from '../../api/apps.ts';
import type { Subscription } from '../../api/generated.ts';
import type { HealthSource } from '../../api/health.ts';
import { subscriptionsQuery } from '../../api/queries.ts';
import { SelectField } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { formatMinute } from '../../ui/time.tsx';
import { nameOf } from '../subscriptions/list_page.tsx';
import { NoSubscriptionsYet } from '../subscriptions/none_yet.tsx';
import { HealthView } from './health_view.tsx';

export function HealthPage() {
  return (
    <Page title="Health" description="Success rate, latency and errors of deliveries.">
      <Overview />
    </Page>
  );
}

function Overview() {
  const subscriptions = useInfiniteQuery(subscriptionsQuery);
  const apps = useInfiniteQuery(appsQuery);
  const { of } = useSearch({ from: '/health' });
  const navigate = useNavigate();
  const error = subscriptions.error ?? apps.error;
  if (error !== null) return <Failure error={error} onRetry={subscriptions.refetch} />;
  if (subscriptions.data === undefined || apps.data === undefined) return <Skeletons />;
  const own = subscriptions.data.pages.flatMap((page) => page.items);
  const choices = [
    ...own.map(({ id, url, description }) => ({
      id: `subscription ${id}`,
      title: nameOf({ description, url }),
    })),
    ...apps.data.pages
      .flatMap((page) => page.items)
      .map(({ client_id: id, client_name: name }) => ({ id: `app ${id}`, title: `App: ${name}` })),
  ];
  if (choices.length === 0) {
    return (
      <div className="card">
        <NoSubscriptionsYet icon={HeartPulse}>
          Create a subscription to see how its deliveries perform.
        </NoSubscriptionsYet>
      </div>
    );
  }
  const all = { id: 'all ', title: 'All subscriptions' };
  const chosen = choices.find(({ id }) => id === of) ?? all;
  const [kind, id] = chosen.id.split(' ') as [HealthSource['kind'], string];
  return (
    <div className="stack">
      <Failing subscriptions={own} />
      <SelectField
        label="Show"
        value={chosen.id}
        onChange={(next) => void navigate({ to: '/health', search: { of: next }, replace: true })}
        choices={[all, ...choices]}
      />
      <HealthView key={chosen.id} source={{ kind, id }} />
    </div>
  );
}

function Failing({ subscriptions }: { subscriptions: readonly Subscription[] }) {
  return subscriptions
    .filter(({ failing_since: since, state }) => since !== null && state === 'active')
    .map(({ id, url, description, failing_since: since, disables_at: at }) => (
      <Notice key={id} look="bad" title={`${nameOf({ description, url })} is failing`}>
        <p>
          No delivery has succeeded since {formatMinute(since ?? '')}.
          {at !== null && ` It will be disabled on ${formatMinute(at)} unless one does.`}{' '}
          <Link to="/subscriptions/$id" params={{ id }} search={{ tab: 'deliveries' }}>
            View deliveries
          </Link>
        </p>
      </Notice>
    ));
}
