/** Checks the versions that a kind declares: their names and dates, and that each conversion of the example fits its schema. */

import { Script } from 'node:vm';
import type { Ajv } from 'ajv';
import { reportUnknown } from '../shared/nearest.ts';
import { type EarlierVersion, type EventKind, versionMembers } from './kind.ts';
import { convertBody } from './versions.ts';

const earlierMax = 50;
/** Milliseconds for the conversion of the example. */
const conversionMsMax = 1_000;

type Report = (place: string, reason: string) => void;

/** @param place prefix of the places in reports, such as `eventKinds.push` */
export function checkVersions(ajv: Ajv, kind: EventKind, place: string, report: Report): void {
  const { version, versions = {} } = kind;
  const earlier = Object.entries(versions);
  if (version === undefined && earlier.length > 0)
    report(`${place}.version`, 'is required with versions: it names the newest one, such as 2026-10-01');
  if (version !== undefined && !isDate(version)) report(`${place}.version`, dateReason);
  if (earlier.length > earlierMax) report(`${place}.versions`, `must have at most ${earlierMax} entries`);
  let areUsable = version !== undefined;
  for (const [name, each] of earlier) {
    const problem = problemOf(name, each, version ?? '9999-12-31');
    if (problem !== undefined) report(`${place}.versions.${name}${problem.at}`, problem.reason);
    else reportUnknown(each, versionMembers, `${place}.versions.${name}`, report);
    areUsable &&= problem === undefined;
  }
  if (areUsable) for (const [name] of earlier) checkConversion(ajv, kind, name, place, report);
}

const dateReason = 'must be a date, such as 2026-10-01';

function problemOf(
  name: string,
  each: EarlierVersion,
  newest: string,
): { at: string; reason: string } | undefined {
  if (!isDate(name)) return { at: '', reason: dateReason };
  if (name >= newest) return { at: '', reason: `must be earlier than the newest version, ${newest}` };
  if (typeof each !== 'object' || each === null || typeof each.from !== 'function')
    return {
      at: '.from',
      reason: 'must be a function that makes this version’s body from that of the next newer one',
    };
  const { deprecation, sunset } = each;
  if (deprecation !== undefined && !isDate(deprecation)) return { at: '.deprecation', reason: dateReason };
  if (sunset !== undefined && !isDate(sunset)) return { at: '.sunset', reason: dateReason };
  if (sunset !== undefined && (deprecation === undefined || sunset < deprecation))
    return { at: '.sunset', reason: 'must not be without a deprecation, nor before it' };
  return undefined;
}

function isDate(text: unknown): boolean {
  return (
    typeof text === 'string' &&
    /^\d{4}-\d\d-\d\d$/.test(text) &&
    new Date(`${text}T00:00:00Z`).toJSON()?.slice(0, 10) === text
  );
}

function checkConversion(ajv: Ajv, kind: EventKind, name: string, place: string, report: Report): void {
  const at = `${place}.versions.${name}`;
  let converted: unknown;
  try {
    const example = structuredClone(kind.example);
    converted = withTimeout(() => convertBody(kind, example, kind.version as string, name));
  } catch (error) {
    report(`${at}.from`, `cannot convert the example: ${(error as Error)?.message ?? error}`);
    return;
  }
  try {
    const schema = kind.versions?.[name]?.schema ?? {};
    if (ajv.validate(schema, converted)) return;
    report(`${at}.from`, `makes of the example a body that does not match the schema: ${ajv.errorsText()}`);
  } catch (error) {
    report(`${at}.schema`, `is not a valid schema: ${(error as Error).message}`);
  }
}

const call = new Script('globalThis[Symbol.for("nuncio.checked")]()');

/** V8 interrupts the function, so that an endless loop does not keep the server from saying why it does not start. */
function withTimeout(work: () => unknown): unknown {
  const key = Symbol.for('nuncio.checked');
  const place = globalThis as { [key]?: () => unknown };
  place[key] = work;
  try {
    return call.runInThisContext({ timeout: conversionMsMax });
  } finally {
    delete place[key];
  }
}
