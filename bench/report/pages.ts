/** The report and the figures of docs/sizing.md, made from the results of one run. */

import type { BenchRecord } from '../support/record.ts';
import { type Bar, barChart } from './bar_chart.ts';

/** One run of all programs. */
export interface Run {
  /** YYYY-MM-DD */
  date: string;
  commit: string;
  /** Processor, cores, memory, and versions. */
  machine: string;
  records: BenchRecord[];
}

/** A table of a report. Every cell is text. */
interface Table {
  title: string;
  /** What was measured and how to read it. */
  words: string;
  columns: string[];
  rows: string[][];
  chart?: { file: string; title: string; bars: Bar[] };
}

const whole = (value: unknown) => Math.round(Number(value)).toLocaleString('en-US');
const tenth = (value: unknown) => Number(value).toFixed(1);

/** @returns files of the report by name */
export function reportFiles(run: Run): Map<string, string> {
  const files = new Map<string, string>([['results.json', `${JSON.stringify(run, null, 2)}\n`]]);
  const tables = tablesOf(run);
  for (const { chart } of tables) {
    if (chart !== undefined) files.set(chart.file, barChart(chart.title, chart.bars));
  }
  const head = [
    '# Results of one run',
    '',
    `${run.date}, commit \`${run.commit}\`. ${run.machine} Made by \`npm run bench\`; [the README](../README.md) has the method. Rates of`,
    'different runs are not comparable; ratios and processor time are.',
  ];
  files.set('report.md', `${[...head, ...tables.flatMap(section)].join('\n')}\n`);
  return files;
}

function section({ title, words, columns, rows, chart }: Table): string[] {
  const picture = chart === undefined ? [] : ['', `![${chart.title}](${chart.file})`];
  return ['', `## ${title}`, '', words, ...picture, '', ...markdownTable(columns, rows)];
}

function markdownTable(columns: readonly string[], rows: readonly string[][]): string[] {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`;
  return [line(columns), line(columns.map(() => '---')), ...rows.map(line)];
}

type Of = (name: string) => BenchRecord[];

function tablesOf({ records }: Run): Table[] {
  const of: Of = (name) => records.filter((one) => one.of === name);
  return [...deliveryTables(of), ...otherTables(of)].filter(({ rows }) => rows.length > 0);
}

function deliveryTables(of: Of): Table[] {
  return [
    {
      title: 'Deliveries',
      words:
        'Events in batches of 1,000 to the last receipt, each event with one delivery. The bare loop only signs and POSTs.',
      columns: [
        'subscriptions',
        'deliveries/s',
        'bare loop/s',
        'ratio',
        'Node µs',
        'PostgreSQL µs',
        'WAL bytes',
        'resident MiB',
      ],
      rows: of('deliveries').map((one) => [
        whole(one.subscriptions),
        whole(one.perSecond),
        whole(one.barePerSecond),
        (Number(one.perSecond) / Number(one.barePerSecond)).toFixed(2),
        tenth(one.nodeMicros),
        tenth(one.postgresMicros),
        whole(one.walBytes),
        whole(one.residentMiB),
      ]),
      chart: {
        file: 'deliveries.svg',
        title: 'Deliveries a second',
        bars: of('deliveries').flatMap((one) => [
          bar(`${whole(one.subscriptions)} subscriptions`, one.perSecond, '/s'),
          { ...bar('bare loop', one.barePerSecond, '/s'), isReference: true },
        ]),
      },
    },
    {
      title: 'Single events',
      words:
        'One event in each request, 32 connections, one subscription. `publish` is without a subscription.',
      columns: ['sender', 'events/s', 'Node µs', 'PostgreSQL µs'],
      rows: of('single').map((one) => [
        String(one.sender),
        whole(one.perSecond),
        whole(one.nodeMicros),
        whole(one.postgresMicros),
      ]),
      chart: {
        file: 'single.svg',
        title: 'Single events a second',
        bars: of('single').map((one) => ({
          ...bar(String(one.sender), one.perSecond, '/s'),
          isReference: one.sender !== 'nuncio' && one.sender !== 'publish',
        })),
      },
    },
    {
      title: 'Latency',
      words: 'From publishing to the receipt, at a steady rate, with 100 subscriptions.',
      columns: ['sender', 'events/s', 'p50 ms', 'p99 ms', 'max ms'],
      rows: of('latency').map((one) => [
        String(one.sender),
        whole(one.rate),
        tenth(one.p50Ms),
        tenth(one.p99Ms),
        whole(one.maxMs),
      ]),
      chart: {
        file: 'latency.svg',
        title: 'Latency, p99',
        bars: of('latency').map((one) => ({
          label: `${one.sender}, ${whole(one.rate)} events/s`,
          value: Number(one.p99Ms),
          text: `${tenth(one.p99Ms)} ms`,
          isReference: one.sender !== 'Nuncio',
        })),
      },
    },
  ];
}

function otherTables(of: Of): Table[] {
  return [
    {
      title: 'Backlog and memory',
      words:
        'A server starts on a database with due deliveries. Resident memory of the server, from the sources.',
      columns: ['due', 'deliveries/s', 'resident MiB at most'],
      rows: [
        ...of('idle').map((one) => ['none', '', whole(one.residentMiB)]),
        ...of('backlog').map((one) => [whole(one.due), whole(one.perSecond), whole(one.residentMiB)]),
      ],
    },
    {
      title: 'Disk',
      words: 'Tables with their indexes, for accepted deliveries without a response body.',
      columns: ['body KiB', 'bytes for each event', 'bytes for each delivery', 'WAL bytes for each delivery'],
      rows: of('disk').map((one) => [
        String(one.bodyKiB),
        whole(one.eventBytes),
        whole(one.deliveryBytes),
        whole(one.walBytes),
      ]),
    },
    {
      title: 'API',
      words: 'One core for the server, 32 connections.',
      columns: ['request', 'requests/s', 'Node µs'],
      rows: of('api').map((one) => [String(one.request), whole(one.perSecond), whole(one.micros)]),
    },
    {
      title: 'Tokens',
      words: 'The token endpoint beside `oidc-provider` with a store in memory.',
      columns: ['flow', 'responses/s', 'bare engine/s', 'Node µs'],
      rows: of('tokens').map((one) => [
        String(one.flow),
        whole(one.perSecond),
        whole(one.barePerSecond),
        whole(one.micros),
      ]),
    },
    {
      title: 'Pull',
      words: 'One consumer reads 100,000 events in pages of 1,000, three times.',
      columns: ['round', 'events/s'],
      rows: of('pull').map((one) => [String(one.round), whole(one.perSecond)]),
    },
  ];
}

function bar(label: string, value: unknown, unit: string): Bar {
  return { label, value: Number(value), text: `${whole(value)}${unit}` };
}

const secondsOfDay = 86_400;

/** Returns the generated parts of docs/sizing.md by the name of their markers. */
export function sizingParts({ date, commit, machine, records }: Run): Map<string, string> {
  const of = (name: string) => records.filter((one) => one.of === name);
  const micros = of('deliveries').map((one) => ({
    ...one,
    all: Number(one.nodeMicros) + Number(one.postgresMicros),
  }));
  const processor = markdownTable(
    [
      'subscriptions',
      'processor time of a delivery, Nuncio and PostgreSQL',
      'deliveries a second on one core',
    ],
    micros.map((one) => [
      whole((one as BenchRecord).subscriptions),
      `${whole(one.all)} µs`,
      whole(1_000_000 / one.all),
    ]),
  );
  const disk = markdownTable(
    ['deliveries', ...of('disk').map((one) => `bodies of ${one.bodyKiB} KiB`)],
    [1, 10, 100, 1_000].map((rate) => [
      `${whole(rate)} a second (${whole((rate * secondsOfDay) / 1_000)},000 a day)`,
      ...of('disk').map((one) => {
        const day = (Number(one.eventBytes) + Number(one.deliveryBytes)) * rate * secondsOfDay;
        return `${gigabytes(day)} a day, ${gigabytes(day * 30)} in 30 days`;
      }),
    ]),
  );
  const memory = markdownTable(
    ['server', 'resident'],
    [
      ...of('idle').map((one) => ['idle', `${whole(one.residentMiB)} MiB`]),
      ...of('deliveries').map((one) => [
        `sending at full speed to ${whole(one.subscriptions)} subscriptions`,
        `${whole(one.residentMiB)} MiB`,
      ]),
      ...of('backlog').map((one) => [
        `with ${whole(one.due)} deliveries due`,
        `${whole(one.residentMiB)} MiB`,
      ]),
    ],
  );
  const source = [`Measured on ${date} with commit \`${commit}\` by \`npm run bench\`. ${machine}`];
  return new Map([
    ['source', source.join('\n')],
    ['processor', processor.join('\n')],
    ['disk', disk.join('\n')],
    ['memory', memory.join('\n')],
  ]);
}

function gigabytes(bytes: number): string {
  const value = bytes / 1e9;
  return value < 10 ? `${value.toFixed(1)} GB` : `${whole(value)} GB`;
}

/** Replaces the generated parts of a page. @throws Error if a part has no place */
export function replaceParts(page: string, parts: Map<string, string>): string {
  let result = page;
  for (const [name, text] of parts) {
    const place = new RegExp(`(<!-- bench:${name} -->\n)[^]*?(<!-- end -->)`);
    if (!place.test(result)) throw new Error(`the page has no place for ${name}`);
    result = result.replace(place, (_, begin: string, end: string) => `${begin}${text}\n${end}`);
  }
  return result;
}
