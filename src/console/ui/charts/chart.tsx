/** Charts as SVG: stacked bars and lines over time, each with a table of the same data for screen readers. */

import type { ReactNode } from 'react';
import { formatExact, formatMinute } from '../time.tsx';
import { type ChartData, roundTop, type Series } from './series.ts';

interface ChartProps {
  title: string;
  data: ChartData;
  format: (value: number) => string;
}

/** Units of the drawing, which stretches to its container. */
const width = 1_000;
const height = 200;

export function StackedBars({ title, data, format }: ChartProps) {
  const sums = data.moments.map((_moment, at) =>
    data.series.reduce((sum, { values }) => sum + (values[at] ?? 0), 0),
  );
  const top = roundTop(Math.max(...sums, 0));
  const step = width / Math.max(data.moments.length, 1);
  return (
    <Frame title={title} data={data} format={format} top={top}>
      {data.moments.map((moment, at) => {
        let below = 0;
        return data.series.map(({ name, look, values }) => {
          const size = ((values[at] ?? 0) / top) * height;
          below += size;
          return size === 0 ? null : (
            <rect
              key={`${moment} ${name}`}
              className={`chart-${look}`}
              x={at * step + step * 0.1}
              y={height - below}
              width={step * 0.8}
              height={size}
            />
          );
        });
      })}
    </Frame>
  );
}

export function Lines({ title, data, format }: ChartProps) {
  const all = data.series.flatMap(({ values }) => values.map((value) => value ?? 0));
  const top = roundTop(Math.max(...all, 0));
  return (
    <Frame title={title} data={data} format={format} top={top}>
      {data.series.map((series) => (
        <path key={series.name} className={`chart-line chart-line-${series.look}`} d={pathOf(series, top)} />
      ))}
    </Frame>
  );
}

/** A missing value interrupts the line. A single value is drawn as a dash. */
function pathOf({ values }: Series, top: number): string {
  const step = width / Math.max(values.length, 1);
  let isDrawing = false;
  return values
    .map((value, at) => {
      if (value === null) {
        isDrawing = false;
        return '';
      }
      const y = height - (value / top) * height;
      const start = isDrawing ? `L${at * step} ${y}` : `M${at * step} ${y}`;
      isDrawing = true;
      return `${start}L${(at + 1) * step} ${y}`;
    })
    .join('');
}

interface FrameProps extends ChartProps {
  top: number;
  children: ReactNode;
}

function Frame({ title, data, format, top, children }: FrameProps) {
  const [first, last] = [data.moments[0], data.moments.at(-1)];
  return (
    <figure className="chart">
      <div className="chart-legend">
        {data.series.map(({ name, look }) => (
          <span key={name} className="chart-key">
            <span className={`chart-dot chart-dot-${look}`} /> {name}
          </span>
        ))}
      </div>
      <div className="chart-area">
        <span className="chart-axis" aria-hidden>
          <span>{format(top)}</span>
          <span>{format(top / 2)}</span>
          <span>0</span>
        </span>
        <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={title}>
          <path className="chart-grid" d={`M0 0H${width}M0 ${height / 2}H${width}M0 ${height}H${width}`} />
          {children}
        </svg>
      </div>
      <figcaption className="chart-times soft small">
        <span>{first !== undefined && formatMinute(first)}</span>
        <span>{last !== undefined && formatMinute(last)}</span>
      </figcaption>
      <Numbers title={title} data={data} format={format} />
    </figure>
  );
}

function Numbers({ title, data, format }: ChartProps) {
  const rows = data.moments
    .map((moment, at) => ({ moment, values: data.series.map(({ values }) => values[at] ?? null) }))
    .filter(({ values }) => values.some((value) => value !== null && value !== 0));
  return (
    <details className="more">
      <summary className="small">As a table</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard */}
      <section className="table-scroll chart-table" tabIndex={0} aria-label={`${title}, as a table`}>
        <table className="table">
          <thead>
            <tr>
              <th scope="col">Time</th>
              {data.series.map(({ name }) => (
                <th key={name} scope="col">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(({ moment, values }) => (
              <tr key={moment}>
                <td className="nowrap">{formatExact(moment)}</td>
                {values.map((value, index) => (
                  <td key={data.series[index]?.name}>{value === null ? '–' : format(value)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </details>
  );
}
