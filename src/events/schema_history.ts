/**
 * The schemas that kinds had at earlier starts. A start is refused if the schema of a version has changed so that it breaks
 * subscribers: if it differs in what they rely on, or refuses stored events. Owns the table `event_schemas`.
 *
 *   new kind or version → stored
 *   known schema → accepted, also an earlier one: during an upgrade and after a rollback, nodes differ
 *   changed schema → compatible: stored | breaking, and somebody depends on the kind: the start is refused
 */

import { createHash } from 'node:crypto';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import { sql } from 'kysely';
import { textArray } from '../database/arrays.ts';
import { type Database, isStatementTimeout } from '../database/database.ts';
import type { EventKind } from './kind.ts';
import { patternsOf } from './kind_pattern.ts';
import { schemaDifferences } from './schema_differences.ts';
import { replaceLengthKeywords } from './string_length.ts';
import { describeVersions, versionNames } from './versions.ts';

/** Only this many of the latest events are searched, and of each kind only this many are checked. */
const searchedMax = 5_000;
const checkedMax = 20;
const timeoutMs = 5_000;
const differencesMax = 5;

interface Declared {
  kind: EventKind;
  /** Empty if the kind has no versions. */
  version: string;
  schema: unknown;
  example: unknown;
  digest: string;
}

interface SeenRow {
  kind: string;
  version: string;
  digest: string;
  schema: string;
  example: string;
}

interface Changed {
  now: Declared;
  before: SeenRow;
}

/**
 * Compares the kinds with those of earlier starts, and stores what is new unless there are problems.
 * @param kinds the platform's kinds
 * @param onWarning called if stored events could not be read in time
 * @returns the problems, each in one line
 */
export async function checkSchemaHistory(
  db: Database,
  kinds: readonly EventKind[],
  onWarning: (message: string) => void,
): Promise<string[]> {
  const declared = kinds.flatMap(declaredOf);
  const { rows: seen } = await sql<SeenRow>`
    select kind, version, digest, schema, example from event_schemas order by seen_at`.execute(db);
  const known = new Set(seen.map(({ kind, version, digest }) => `${kind} ${version} ${digest}`));
  const fresh = declared.filter(
    ({ kind, version, digest }) => !known.has(`${kind.name} ${version} ${digest}`),
  );
  const changed = fresh.flatMap((now): Changed[] => {
    const before = predecessorOf(now, seen);
    return before === undefined || before.digest === now.digest ? [] : [{ now, before }];
  });
  const problems = await problemsOf(db, changed, onWarning);
  if (problems.length === 0) await store(db, fresh);
  return problems;
}

function declaredOf(kind: EventKind): Declared[] {
  const versions = describeVersions(kind);
  const all = versions.length > 0 ? versions : [{ version: '', schema: kind.schema, example: kind.example }];
  return all.map(({ version, schema, example }) => {
    const digest = createHash('sha256').update(JSON.stringify(schema)).digest('hex');
    return { kind, version, schema, example, digest };
  });
}

/** The schema that the version had last. A kind's first versions begin with the schema that it had without versions. */
function predecessorOf({ kind, version }: Declared, seen: readonly SeenRow[]): SeenRow | undefined {
  const ofKind = seen.filter((row) => row.kind === kind.name);
  const same = ofKind.findLast((row) => row.version === version);
  if (same !== undefined) return same;
  const [oldest = ''] = versionNames(kind);
  if (version === oldest && version !== '') return ofKind.findLast((row) => row.version === '');
  if (version !== '') return undefined;
  const newest = ofKind
    .map((row) => row.version)
    .sort()
    .at(-1);
  return ofKind.findLast((row) => row.version === newest);
}

async function problemsOf(
  db: Database,
  changed: readonly Changed[],
  onWarning: (message: string) => void,
): Promise<string[]> {
  if (changed.length === 0) return [];
  const events = await latestEvents(db, changed, onWarning);
  const ajv = new Ajv({ strict: false });
  addFormats.default(ajv);
  replaceLengthKeywords(ajv);
  const problems: string[] = [];
  for (const { now, before } of changed) {
    const { kind, version } = now;
    const ofKind = events.filter((event) => event.kind === kind.name);
    const validate = ajv.compile(now.schema as object);
    const refused = (title: string, body: unknown) =>
      validate(body)
        ? []
        : [`${title} does not match it any more: ${ajv.errorsText(validate.errors, { dataVar: '' }).trim()}`];
    const differences = [
      ...schemaDifferences(JSON.parse(before.schema), now.schema),
      ...refused('the former example', JSON.parse(before.example)),
      ...ofKind
        .filter((event) => event.version === before.version)
        .flatMap(({ id, body }) => refused(`the stored event ${id}`, JSON.parse(body))),
    ];
    if (differences.length === 0) continue;
    if (ofKind.length === 0 && !(await hasSubscription(db, kind))) continue;
    problems.push(sentenceOf(kind.name, version, differences));
  }
  return problems;
}

function sentenceOf(kind: string, version: string, differences: readonly string[]): string {
  const shown = differences.slice(0, differencesMax);
  const rest = differences.length - shown.length;
  const listed = [...shown, ...(rest > 0 ? [`${rest} more`] : [])].join('; ');
  const of = version === '' ? '' : ` of version ${version}`;
  return `eventKinds.${kind}: the schema${of} changed in a way that breaks subscribers: ${listed}. Declare the new schema as a new version, and keep the former one in versions`;
}

/** The latest events of the changed kinds. None if the database is too slow. */
async function latestEvents(db: Database, changed: readonly Changed[], onWarning: (message: string) => void) {
  const names = textArray([...new Set(changed.map(({ now }) => now.kind.name))]);
  try {
    return await db.transaction().execute(async (tx) => {
      await sql`select set_config('statement_timeout', ${String(timeoutMs)}, true)`.execute(tx);
      const { rows } = await sql<{ kind: string; version: string; id: string; body: string }>`
        select e.kind, coalesce(e.version, '') as version, e.id, e.body
        from (
          select day, position, row_number() over (partition by kind, version order by day desc, position desc) as number
          from (
            select day, position, kind, version from events
            where body is not null order by day desc, position desc limit ${searchedMax}::int
          ) as latest
          where kind = any(${names}::text[])
        ) as found
        join events e on e.day = found.day and e.position = found.position
        where found.number <= ${checkedMax}::int and e.body is not null`.execute(tx);
      return rows;
    });
  } catch (error) {
    if (!isStatementTimeout(error)) throw error;
    onWarning('changed schemas of event kinds are not compared with stored events: the database is too slow');
    return [];
  }
}

async function hasSubscription(db: Database, { name }: EventKind): Promise<boolean> {
  const { rows } = await sql`
    select from subscriptions where state <> 'ended' and kinds && ${textArray(patternsOf(name))}::text[] limit 1`.execute(
    db,
  );
  return rows.length > 0;
}

async function store(db: Database, fresh: readonly Declared[]): Promise<void> {
  if (fresh.length === 0) return;
  await sql`
    insert into event_schemas (kind, version, digest, schema, example)
    select * from unnest(
      ${textArray(fresh.map(({ kind }) => kind.name))}::text[], ${textArray(fresh.map(({ version }) => version))}::text[],
      ${textArray(fresh.map(({ digest }) => digest))}::text[],
      ${textArray(fresh.map(({ schema }) => JSON.stringify(schema)))}::text[],
      ${textArray(fresh.map(({ example }) => JSON.stringify(example)))}::text[])
    -- Another node stored it at the same time.
    on conflict (kind, version, digest) do nothing`.execute(db);
}
