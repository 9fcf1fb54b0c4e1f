/** The live delivery log of one subscription, with filters. */

import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Inbox } from 'lucide-react';
import { useState } from 'react';
import { type DeliveryFilter, deliveriesQuery } from '../../api/deliveries.ts';
import type { Delivery } from '../../api/generated.ts';
import { kindsQuery } from '../../api/queries.ts';
import { Badge, capitalize } from '../../ui/badge.tsx';
import { Button } from '../../ui/button.tsx';
import { SelectField, TextField } from '../../ui/fields.tsx';
import { Empty, Failure, Skeletons } from '../../ui/states.tsx';
import { Ago } from '../../ui/time.tsx';
import { DeliveryBadge } from './delivery_badge.tsx';
import { useLiveDeliveries } from './live.ts';

const states = ['pending', 'failing', 'held', 'succeeded', 'failed', 'cancelled'];
const stateChoices = [
  { id: 'all', title: 'All states' },
  ...states.map((id) => ({ id, title: capitalize(id) })),
];
const hourMs = 3_600_000;
const ranges = [
  { id: '0', title: 'All time' },
  { id: '1', title: 'Last hour' },
  { id: '24', title: 'Last 24 hours' },
  { id: '168', title: 'Last 7 days' },
];

export function DeliveryLog({ id }: { id: string }) {
  const [filter, setFilter] = useState<DeliveryFilter>({});
  return (
    <div className="stack">
      <Filters filter={filter} onChange={setFilter} />
      <Deliveries id={id} filter={filter} onReset={() => setFilter({})} />
    </div>
  );
}

interface FiltersProps {
  filter: DeliveryFilter;
  onChange: (filter: DeliveryFilter) => void;
}

function Filters({ filter, onChange }: FiltersProps) {
  const { data } = useQuery(kindsQuery);
  const [hours, setHours] = useState('0');
  const kinds = (data?.items ?? []).map(({ name }) => ({ id: name, title: name }));
  const change = (part: DeliveryFilter) => {
    const merged = Object.entries({ ...filter, ...part }).filter(([, value]) => value !== undefined);
    onChange(Object.fromEntries(merged));
  };
  return (
    <div className="filters">
      <SelectField
        label="State"
        value={filter.status ?? 'all'}
        onChange={(status) => change({ status: status === 'all' ? undefined : status })}
        choices={stateChoices}
      />
      <SelectField
        label="Kind"
        value={filter.kind ?? 'all'}
        onChange={(kind) => change({ kind: kind === 'all' ? undefined : kind })}
        choices={[{ id: 'all', title: 'All kinds' }, ...kinds]}
      />
      <SelectField
        label="Time"
        value={hours}
        onChange={(next) => {
          setHours(next);
          const since = new Date(Date.now() - Number(next) * hourMs).toISOString();
          change({ since: next === '0' ? undefined : since });
        }}
        choices={ranges}
      />
      <TextField
        label="Delivery ID"
        value={filter.id ?? ''}
        onChange={(text) => change({ id: text.trim() === '' ? undefined : text.trim() })}
        placeholder=""
        isMono
      />
    </div>
  );
}

function Deliveries({ id, filter, onReset }: { id: string; filter: DeliveryFilter; onReset: () => void }) {
  const isLive = useLiveDeliveries(id, filter);
  const query = useInfiniteQuery(deliveriesQuery(id, filter));
  const { data, error, refetch, hasNextPage, fetchNextPage, isFetchingNextPage } = query;
  if (error !== null && data === undefined) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons count={6} />;
  const deliveries = data.pages.flatMap((page) => page.items);
  const isFiltered = Object.keys(filter).length > 0;
  return (
    <div className="stack">
      <div className="row">
        <Badge look={isLive ? 'good' : 'still'}>{isLive ? 'live' : 'Refreshes every few seconds'}</Badge>
      </div>
      <div className="card">
        {deliveries.length > 0 ? (
          <DeliveryTable deliveries={deliveries} />
        ) : isFiltered ? (
          <Empty
            icon={Inbox}
            title="No matching deliveries"
            action={<Button onPress={onReset}>Clear filters</Button>}
          >
            {hasNextPage ? 'None of the newest deliveries match. Load older ones, or choose' : 'Choose'} other
            filters.
          </Empty>
        ) : (
          <Empty icon={Inbox} title="No deliveries yet">
            Deliveries appear here as they happen. Send a test event to see one.
          </Empty>
        )}
      </div>
      {hasNextPage && (
        <Button isPending={isFetchingNextPage} onPress={() => void fetchNextPage()}>
          Load older
        </Button>
      )}
    </div>
  );
}

function DeliveryTable({ deliveries }: { deliveries: readonly Delivery[] }) {
  return (
    <table className="table table-cards">
      <thead>
        <tr>
          <th scope="col">State</th>
          <th scope="col">Kind</th>
          <th scope="col">Sequence</th>
          <th scope="col">Attempts</th>
          <th scope="col">Created</th>
        </tr>
      </thead>
      <tbody>
        {deliveries.map((delivery) => (
          <tr key={delivery.id}>
            <td>
              <DeliveryBadge delivery={delivery} />
            </td>
            <td>
              <Link className="table-link" to="/deliveries/$id" params={{ id: delivery.id }}>
                {delivery.kind}
              </Link>
            </td>
            <td data-label="Sequence">{delivery.sequence}</td>
            <td data-label="Attempts">{delivery.attempt_count}</td>
            <td className="soft" data-label="Created">
              <Ago time={delivery.created_at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
