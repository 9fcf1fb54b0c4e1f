/** The user's subscriptions and those of connected apps. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Webhook } from 'lucide-react';
import type { Subscription } from '../../api/generated.ts';
import { subscriptionsQuery } from '../../api/queries.ts';
import { Badge } from '../../ui/badge.tsx';
import { Page } from '../../ui/page.tsx';
import { PagedList } from '../../ui/paged_list.tsx';
import { Ago } from '../../ui/time.tsx';
import { NoSubscriptionsYet, newSubscriptionLink } from './none_yet.tsx';
import { SubscriptionBadge } from './state_badge.tsx';

export function SubscriptionsPage() {
  return (
    <Page
      title="Subscriptions"
      description="URLs that receive events as they happen."
      actions={newSubscriptionLink}
    >
      <Subscriptions />
    </Page>
  );
}

function Subscriptions() {
  return (
    <PagedList
      query={useInfiniteQuery(subscriptionsQuery)}
      nothing={() => (
        <NoSubscriptionsYet icon={Webhook}>
          Subscribe a URL to events. Each event is signed, sent to the URL, and retried until it is accepted.
        </NoSubscriptionsYet>
      )}
    >
      {(subscriptions) => <SubscriptionTable subscriptions={subscriptions} />}
    </PagedList>
  );
}

export function SubscriptionTable({ subscriptions }: { subscriptions: readonly Subscription[] }) {
  return (
    <table className="table table-cards">
      <thead>
        <tr>
          <th scope="col">Endpoint</th>
          <th scope="col">Kinds</th>
          <th scope="col">State</th>
          <th scope="col">Created</th>
        </tr>
      </thead>
      <tbody>
        {subscriptions.map((subscription) => (
          <tr key={subscription.id}>
            <td>
              <Link className="table-link" to="/subscriptions/$id" params={{ id: subscription.id }}>
                {nameOf(subscription)}
              </Link>{' '}
              {subscription.owner === 'grant' && <Badge look="still">by an app</Badge>}
              {subscription.description !== '' && subscription.url !== null && (
                <p className="soft mono breakable">{subscription.url}</p>
              )}
            </td>
            <td className="kind-column">
              <KindTags kinds={subscription.kinds} />
              {subscription.filter !== null && <span className="soft small">With a filter</span>}
            </td>
            <td>
              <SubscriptionBadge subscription={subscription} />
            </td>
            <td className="soft" data-label="Created">
              <Ago time={subscription.created_at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The subscription's description, or else its URL. */
export function nameOf({ description, url }: Pick<Subscription, 'description' | 'url'>): string {
  return description === '' ? (url ?? 'Read by the app') : description;
}

/** Number of kinds shown; the rest is counted. */
const tagsMax = 3;

export function KindTags({ kinds }: { kinds: readonly string[] }) {
  return (
    <span className="kind-tags">
      {kinds.slice(0, tagsMax).map((kind) => (
        <span key={kind} className="kind-tag">
          {kind === '*' ? 'all\u00a0kinds' : kind}
        </span>
      ))}
      {kinds.length > tagsMax && (
        <span className="kind-tag" title={kinds.slice(tagsMax).join(', ')}>
          +{kinds.length - tagsMax}
        </span>
      )}
    </span>
  );
}
