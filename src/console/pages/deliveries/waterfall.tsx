/** The timing of an attempt: DNS, connection, TLS, waiting, reading. */

import type { Attempt } from '../../api/generated.ts';
import { formatMs } from '../../ui/time.tsx';

interface Phase {
  name: string;
  from: number;
  ms: number;
}

function phasesOf({ timings, duration_ms: total }: Attempt): Phase[] {
  const phases: Phase[] = [];
  let at = 0;
  const steps = [
    ['DNS', timings?.dns_ms],
    ['Connect', timings?.connect_ms],
    ['TLS', timings?.tls_ms],
  ] as const;
  for (const [name, ms] of steps) {
    if (ms == null) continue;
    phases.push({ name, from: at, ms });
    at += ms;
  }
  const end = total ?? at;
  const firstByte = timings?.first_byte_ms ?? null;
  if (firstByte === null) {
    if (end > at) phases.push({ name: 'Waiting', from: at, ms: end - at });
    return phases;
  }
  phases.push({ name: 'First byte', from: at, ms: Math.max(firstByte - at, 0) });
  phases.push({ name: 'Response', from: firstByte, ms: Math.max(end - firstByte, 0) });
  return phases;
}

export function Waterfall({ attempt }: { attempt: Attempt }) {
  const phases = phasesOf(attempt);
  const total = Math.max(attempt.duration_ms ?? 0, ...phases.map(({ from, ms }) => from + ms), 0.1);
  return (
    <ol className="waterfall" aria-label="Timing">
      {phases.map(({ name, from, ms }) => (
        <li key={name} className="waterfall-row">
          <span className="waterfall-name">{name}</span>
          <span className="waterfall-track">
            <span
              className="waterfall-bar"
              style={{ left: `${(from / total) * 100}%`, width: `${Math.max((ms / total) * 100, 0.5)}%` }}
            />
          </span>
          <span className="waterfall-ms">{formatMs(ms)}</span>
        </li>
      ))}
    </ol>
  );
}
