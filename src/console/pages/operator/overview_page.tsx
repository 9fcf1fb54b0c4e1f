/** The server overview: counts, deliveries, nodes. */

import { useQuery } from '@tanstack/react-query';
import { nodesQuery, statsQuery } from '../../api/admin.ts';
import { Badge } from '../../ui/badge.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { HealthDetails } from '../health/health_view.tsx';

const hours = 24;
const number = new Intl.NumberFormat('en');

export function OverviewPage() {
  const { isPending } = useQuery(statsQuery(hours));
  // Requested at once, but shown after the content above has its height, to avoid a layout shift.
  useQuery(nodesQuery);
  return (
    <Page title="Server" description="Activity of this server in the last 24 hours.">
      <Stats />
      {!isPending && <Nodes />}
    </Page>
  );
}

function Stats() {
  const { data, error, refetch } = useQuery(statsQuery(hours));
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons count={6} />;
  const counts = [
    ['Accounts', data.accounts],
    ['Apps', data.apps],
    ['Grants', data.grants],
    ['Subscriptions', data.subscriptions],
    ['Pending events', data.events_waiting],
  ] as const;
  return (
    <>
      <dl className="grid-4">
        {counts.map(([title, { count, is_estimate: isEstimate }]) => (
          <div key={title} className="card card-body">
            <dt className="soft small">{title}</dt>
            <dd className="figure-number">
              {isEstimate ? '≈ ' : ''}
              {number.format(count)}
            </dd>
          </div>
        ))}
      </dl>
      <HealthDetails health={data} />
    </>
  );
}

function Nodes() {
  const { data, error, refetch } = useQuery(nodesQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  return (
    <Card title="Nodes" isFlush>
      <ul className="list-rows">
        {data.items.map((node) => (
          <li key={node.id} className="row-between">
            <span>
              <strong>{node.host.split(' ', 1)[0]}</strong> <span className="soft mono">{node.process}</span>
            </span>
            <Badge look={node.state === 'alive' ? 'good' : 'bad'}>{node.state}</Badge>
          </li>
        ))}
      </ul>
    </Card>
  );
}
