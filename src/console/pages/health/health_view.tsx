/** Delivery health: outcomes over time, latency, errors, backlog. */

import { useQuery } from '@tanstack/react-query';
import { HeartPulse } from 'lucide-react';
import { useState } from 'react';
import { ToggleButton, ToggleButtonGroup } from 'react-aria-components';
import type { Health } from '../../api/generated.ts';
import { type HealthHours, type HealthSource, healthQuery } from '../../api/health.ts';
import { Lines, StackedBars } from '../../ui/charts/chart.tsx';
import { Card } from '../../ui/page.tsx';
import { Empty, Failure, Skeletons } from '../../ui/states.tsx';
import { Ago, formatMs } from '../../ui/time.tsx';

const ranges: readonly [hours: HealthHours, title: string][] = [
  [1, '1 hour'],
  [24, '24 hours'],
  [168, '7 days'],
  [720, '30 days'],
];

export function HealthView({ source }: { source: HealthSource }) {
  const [hours, setHours] = useState<HealthHours>(24);
  const { data, error, refetch } = useQuery(healthQuery(source, hours));
  return (
    <div className="stack">
      <div className="row">
        <ToggleButtonGroup
          aria-label="Time"
          className="segments"
          selectionMode="single"
          disallowEmptySelection
          selectedKeys={[String(hours)]}
          onSelectionChange={(keys) => setHours(Number([...keys][0]) as HealthHours)}
        >
          {ranges.map(([id, title]) => (
            <ToggleButton key={id} id={String(id)} className="segment">
              {title}
            </ToggleButton>
          ))}
        </ToggleButtonGroup>
      </div>
      {error !== null && <Failure error={error} onRetry={refetch} />}
      {error === null && data === undefined && <Skeletons count={6} />}
      {data !== undefined && <HealthDetails health={data} />}
    </div>
  );
}

export function HealthDetails({ health }: { health: Health }) {
  const { totals, backlog } = health;
  if (totals.attempts === 0 && backlog.pending === 0) {
    return (
      <div className="card">
        <Empty icon={HeartPulse} title="No deliveries in this period">
          Outcomes, latency and errors appear here once there are deliveries.
        </Empty>
      </div>
    );
  }
  return (
    <div className="stack">
      <Figures health={health} />
      <Outcomes health={health} />
      <div className="grid-2">
        <Latency health={health} />
        <Errors health={health} />
      </div>
    </div>
  );
}

function Figures({ health: { totals, backlog } }: { health: Health }) {
  const done = totals.succeeded + totals.failed;
  const rate = done === 0 ? '–' : `${((totals.succeeded / done) * 100).toFixed(done > 999 ? 2 : 1)} %`;
  return (
    <dl className="grid-4">
      <Figure
        title="Success rate"
        value={rate}
        note={`${formatCount(totals.succeeded)} of ${formatCount(done)} deliveries`}
      />
      <Figure
        title="Attempts"
        value={formatCount(totals.attempts)}
        note={`${formatCount(totals.retried)} retried`}
      />
      <Figure
        title="Median latency"
        value={totals.latency_ms.p50 === null ? '–' : `about ${formatMs(totals.latency_ms.p50)}`}
        note={totals.latency_ms.p99 === null ? '' : `p99 about ${formatMs(totals.latency_ms.p99)}`}
      />
      <Figure
        title="Backlog"
        value={`${formatCount(backlog.pending)}${backlog.is_capped ? '+' : ''}`}
        note={
          backlog.oldest_at === null ? (
            backlog.pending === 0 && 'nothing pending'
          ) : (
            <>
              oldest <Ago time={backlog.oldest_at} />
            </>
          )
        }
      />
    </dl>
  );
}

function Figure({ title, value, note }: { title: string; value: string; note: React.ReactNode }) {
  return (
    <div className="card card-body">
      <dt className="soft small">{title}</dt>
      <dd className="figure-number">{value}</dd>
      <dd className="soft small">{note}</dd>
    </div>
  );
}

/** Fills the gaps: the server omits empty intervals. */
function filled(health: Health): { moments: string[]; buckets: (Health['buckets'][number] | undefined)[] } {
  const stepMs = health.bucket_seconds * 1_000;
  const byTime = new Map(health.buckets.map((bucket) => [Date.parse(bucket.at), bucket]));
  const moments: string[] = [];
  const buckets: (Health['buckets'][number] | undefined)[] = [];
  const first = Math.floor(Date.parse(health.since) / stepMs) * stepMs;
  for (let at = first; at < Date.parse(health.until); at += stepMs) {
    moments.push(new Date(at).toISOString());
    buckets.push(byTime.get(at));
  }
  return { moments, buckets };
}

function Outcomes({ health }: { health: Health }) {
  const { moments, buckets } = filled(health);
  const series = [
    { name: 'Succeeded', look: 'good', values: buckets.map((bucket) => bucket?.succeeded ?? 0) },
    { name: 'Retried', look: 'warn', values: buckets.map((bucket) => bucket?.retried ?? 0) },
    { name: 'Failed', look: 'bad', values: buckets.map((bucket) => bucket?.failed ?? 0) },
  ];
  return (
    <Card title="Deliveries over time">
      <StackedBars title="Deliveries over time by outcome" data={{ moments, series }} format={formatCount} />
    </Card>
  );
}

const numbers = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

function formatCount(value: number): string {
  return numbers.format(value);
}

function Latency({ health }: { health: Health }) {
  const { moments, buckets } = filled(health);
  const series = [
    { name: 'p50', look: 'good', values: buckets.map((bucket) => bucket?.latency_ms.p50 ?? null) },
    { name: 'p90', look: 'info', values: buckets.map((bucket) => bucket?.latency_ms.p90 ?? null) },
    { name: 'p99', look: 'bad', values: buckets.map((bucket) => bucket?.latency_ms.p99 ?? null) },
  ];
  return (
    <Card title="Latency" description="Response time percentiles, estimated from a histogram.">
      <Lines title="Latency over time" data={{ moments, series }} format={formatMs} />
    </Card>
  );
}

const errorNames: Readonly<Record<string, string>> = {
  dns: 'DNS',
  connect: 'Connection',
  tls: 'TLS',
  timeout: 'Timeout',
  protocol: 'Invalid HTTP',
  redirect: 'Redirect (3xx)',
  client_error: 'Client error (4xx)',
  server_error: 'Server error (5xx)',
  refused: 'Address not public',
  other: 'Other',
};

function Errors({ health: { totals } }: { health: Health }) {
  const errors = Object.entries(totals.errors as Record<string, number>).sort(([, a], [, b]) => b - a);
  const most = errors[0]?.[1] ?? 1;
  return (
    <Card title="Errors" description="Failed attempts by cause.">
      {errors.length === 0 ? (
        <p className="soft">No failed attempts.</p>
      ) : (
        <ul className="error-bars">
          {errors.map(([name, count]) => (
            <li key={name} className="waterfall-row error-bar">
              <span>{errorNames[name] ?? name}</span>
              <span className="waterfall-track">
                <span
                  className="waterfall-bar waterfall-bar-bad"
                  style={{ width: `${(count / most) * 100}%` }}
                />
              </span>
              <span className="waterfall-ms">{formatCount(count)}</span>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}
