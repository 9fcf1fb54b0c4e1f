/**
 * What requests cost the database. PostgreSQL's `auto_explain` reports the plan of each statement, as executed, to
 * the connection that executed it. No statement is explained again with other parameters.
 *
 * Import this module before the server starts. It sees the connections of this process, not those of the engine's
 * thread. What the server does in the background meanwhile, such as housekeeping, is not reported.
 */

import { AsyncLocalStorage } from 'node:async_hooks';
import { Server } from 'node:http';
import pg from 'pg';

export interface PlanNode {
  'Node Type': string;
  'Relation Name'?: string;
  'Index Name'?: string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  'Shared Hit Blocks': number;
  'Shared Read Blocks': number;
  Plans?: PlanNode[];
}

export interface Statement {
  text: string;
  root: PlanNode;
}

/** How PostgreSQL plans prepared statements: for the given parameters, or once for all. */
export const planModes = ['force_custom_plan', 'force_generic_plan'] as const;
export type PlanMode = (typeof planModes)[number];

interface Capture {
  mode: PlanMode;
  /** The texts of the statements that the captured work has executed. */
  texts: Set<string>;
  statements: Statement[];
}

let capture: Capture | undefined;
/** Contains the capture in the work itself and in the requests that the server receives during it, not in timers. */
const work = new AsyncLocalStorage<Capture | undefined>();
const modes = new WeakMap<pg.Client, PlanMode>();
// biome-ignore lint/suspicious/noExplicitAny: the overloads of pg's own query are passed through unchanged
const query: (...parameters: any[]) => any = pg.Client.prototype.query;

pg.Client.prototype.query = function watchedQuery(this: pg.Client, ...parameters: unknown[]) {
  const current = work.getStore();
  if (current !== undefined) {
    if (modes.get(this) !== current.mode) prepare(this, current.mode);
    const [statement] = parameters as [string | { text: string }];
    current.texts.add(typeof statement === 'string' ? statement : statement.text);
  }
  return query.apply(this, parameters);
} as typeof pg.Client.prototype.query;

const emit = Server.prototype.emit;
Server.prototype.emit = function emitInWork(this: Server, name: string, ...values: unknown[]) {
  const pass = () => emit.call(this, name, ...values);
  return name === 'request' ? work.run(capture, pass) : pass();
} as typeof Server.prototype.emit;

function prepare(client: pg.Client, mode: PlanMode): void {
  if (!modes.has(client)) client.on('notice', (notice) => keep(notice.message ?? ''));
  modes.set(client, mode);
  // The connection executes these before the statement itself.
  query
    .call(
      client,
      `load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on;
      set auto_explain.log_buffers = on; set auto_explain.log_timing = off; set auto_explain.log_format = json;
      set auto_explain.log_level = notice; set auto_explain.log_parameter_max_length = 0;
      set plan_cache_mode = ${mode}`,
    )
    .catch(() => {});
}

function keep(message: string): void {
  const from = message.indexOf('{');
  if (!message.includes('plan:') || from < 0) return;
  const told = JSON.parse(message.slice(from)) as { 'Query Text': string; Plan: PlanNode };
  const text = told['Query Text'];
  if (capture?.texts.has(text)) capture.statements.push({ text, root: told.Plan });
}

/** Returns the statements that `action` executes, itself or by requests to a server in this process. */
export async function captureStatements(
  mode: PlanMode,
  action: () => Promise<unknown>,
): Promise<Statement[]> {
  const statements: Statement[] = [];
  capture = { mode, texts: new Set(), statements };
  try {
    await work.run(capture, action);
  } finally {
    capture = undefined;
  }
  return statements;
}

/** Returns the number of 8 KB blocks that statements read from memory or disk. */
export function buffersOf(statements: readonly Statement[]): number {
  return statements.reduce(
    (sum, { root }) => sum + root['Shared Hit Blocks'] + root['Shared Read Blocks'],
    0,
  );
}

/** Returns the number of rows read from tables and indexes, including those that a filter removed. */
export function rowsOf(statements: readonly Statement[]): number {
  const rows = nodesOf(statements).map((node) =>
    node['Relation Name'] === undefined && node['Index Name'] === undefined
      ? 0
      : (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops'],
  );
  return rows.reduce((sum, count) => sum + count, 0);
}

export function nodesOf(statements: readonly Statement[]): PlanNode[] {
  const all = (node: PlanNode): PlanNode[] => [node, ...(node.Plans ?? []).flatMap(all)];
  return statements.flatMap(({ root }) => all(root));
}
