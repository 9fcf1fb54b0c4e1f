/** Validates the body of requests that create or change a subscription, and reports all faults at once. */

import { retryStepSecondsMax, retryStepsMax } from '../../config/config.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import { matchesAny } from '../../events/kind_pattern.ts';
import { type BodyFault, bodyProblem } from '../../http/problem.ts';
import { isSecret, secretBytesMax, secretBytesMin, signatureShapes } from './signature.ts';
import { type HeaderPatch, readStaticHeaders, type StaticHeaders } from './static_headers.ts';
import { checkSubscriberUrl } from './subscriber_url.ts';
import {
  formats,
  type Subscription,
  type SubscriptionFields,
  type SubscriptionState,
} from './subscription.ts';

const kindsMax = 100;
const descriptionCharactersMax = 1_000;
const rateLimitMax = 10_000;
const overlapSecondsDefault = 86_400;
const overlapSecondsMax = 7 * 86_400;

export interface BodyRules {
  catalogue: Catalogue;
  /** Whether `http` and loopback hosts are accepted. */
  allowInsecure: boolean;
  /** The deployment's own header names, which static headers may not use. */
  headerNames: readonly string[];
}

/** Maximum faults in one response. */
export const faultsMax = 100;

/** Collects the faults of one body. */
class Faults {
  readonly #faults: BodyFault[] = [];

  add(pointer: string, message: string, code?: string): void {
    if (this.#faults.length >= faultsMax) return;
    this.#faults.push({ pointer, message, ...(code === undefined ? {} : { code }) });
  }

  /** @throws Problem 422 if any fault was added */
  raise(): void {
    if (this.#faults.length > 0) throw bodyProblem(this.#faults);
  }
}

type Body = Record<string, unknown>;

const changeable = [
  'url',
  'kinds',
  'signature',
  'format',
  'ordered',
  'rate_limit',
  'retry_schedule',
  'description',
  'headers',
];

/** @throws Problem 422 */
export function readSubscriptionFields(
  body: unknown,
  rules: BodyRules,
): SubscriptionFields & { secret: string | undefined; headers: StaticHeaders } {
  const faults = new Faults();
  const given = readObject(body, [...changeable, 'secret'], faults);
  if (given.url === undefined) faults.add('/url', 'is required');
  if (given.kinds === undefined) faults.add('/kinds', 'is required');
  const fields = readFields(given, rules, faults);
  const secret = readSecret(given.secret, faults);
  const headers = readHeaders(given.headers, rules, false, faults);
  faults.raise();
  return { ...fields, secret, headers: (headers ?? {}) as StaticHeaders };
}

/** Reads a JSON merge patch (RFC 7396). Null restores the default. @throws Problem 422 */
export function readSubscriptionPatch(
  patch: unknown,
  current: Subscription,
  rules: BodyRules,
): SubscriptionFields & { state: SubscriptionState; headers: HeaderPatch | undefined } {
  const faults = new Faults();
  const given = readObject(patch, [...changeable, 'state'], faults);
  for (const name of ['url', 'kinds', 'state']) {
    if (given[name] === null) faults.add(`/${name}`, 'cannot be removed');
  }
  faults.raise();
  // Properties that the patch omits are not validated again: the operator may have removed a kind from the catalogue
  // since.
  const whole: Body = {
    signature: current.signature,
    format: current.format,
    ordered: current.ordered,
    rate_limit: current.rateLimit,
    retry_schedule: current.retrySchedule,
    description: current.description,
    ...given,
  };
  for (const name of ['signature', 'format', 'ordered', 'description']) {
    if (whole[name] === null) delete whole[name];
  }
  const fields = readFields(whole, rules, faults);
  const state = given.state ?? current.state;
  if (state !== 'active' && state !== 'disabled') faults.add('/state', 'must be "active" or "disabled"');
  const headers = given.headers === undefined ? undefined : readHeaders(given.headers, rules, true, faults);
  faults.raise();
  const { url, kinds } = current;
  return {
    ...fields,
    ...(given.url === undefined ? { url } : {}),
    ...(given.kinds === undefined ? { kinds } : {}),
    state: state as SubscriptionState,
    headers,
  };
}

/** Accepts no body or an empty object. @throws Problem 422 */
export function requireEmptyBody(body: unknown): void {
  if (body === undefined) return;
  const faults = new Faults();
  readObject(body, [], faults);
  faults.raise();
}

/** @throws Problem 422 */
export function readRotation(body: unknown): { secret: string | undefined; overlapSeconds: number } {
  const faults = new Faults();
  const given = readObject(body === undefined ? {} : body, ['overlap', 'secret'], faults);
  const overlap = given.overlap ?? overlapSecondsDefault;
  if (!isWhole(overlap, 0, overlapSecondsMax)) {
    faults.add('/overlap', `must be an integer of seconds from 0 to ${overlapSecondsMax}`);
  }
  const secret = readSecret(given.secret, faults);
  faults.raise();
  return { secret, overlapSeconds: overlap as number };
}

/** Reads the kind whose example is sent; undefined for a ping. @throws Problem 422 */
export function readTestKind(body: unknown): string | undefined {
  const faults = new Faults();
  const { kind } = readObject(body === undefined ? {} : body, ['kind'], faults);
  if (kind !== undefined && typeof kind !== 'string') faults.add('/kind', 'must be a kind', 'unknown_kind');
  faults.raise();
  return kind as string | undefined;
}

function readObject(body: unknown, known: readonly string[], faults: Faults): Body {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    faults.add('', 'must be an object');
    faults.raise();
  }
  for (const name of Object.keys(body as Body)) {
    if (!known.includes(name)) {
      faults.add(`/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, 'is not a known property');
    }
  }
  return { ...(body as Body) };
}

function readFields(given: Body, rules: BodyRules, faults: Faults): SubscriptionFields {
  const { signature = 'timestamp', format = 'json', ordered = false, description = '' } = given;
  const rateLimit = given.rate_limit ?? null;
  const schedule = given.retry_schedule ?? null;
  if (!signatureShapes.includes(signature as never))
    faults.add('/signature', `must be one of ${list(signatureShapes)}`);
  if (!formats.includes(format as never)) faults.add('/format', `must be one of ${list(formats)}`);
  if (typeof ordered !== 'boolean') faults.add('/ordered', 'must be true or false');
  if (rateLimit !== null && !isWhole(rateLimit, 1, rateLimitMax)) {
    faults.add('/rate_limit', `must be an integer from 1 to ${rateLimitMax} (per second), or null`);
  }
  if (schedule !== null && !isSchedule(schedule)) {
    faults.add(
      '/retry_schedule',
      `must be 1 to ${retryStepsMax} pauses in seconds, each from 1 to ${retryStepSecondsMax}, or null`,
    );
  }
  if (typeof description !== 'string' || [...description].length > descriptionCharactersMax) {
    faults.add('/description', `must be a string of at most ${descriptionCharactersMax} characters`);
  }
  return {
    url: given.url === undefined ? '' : readUrl(given.url, rules, faults),
    kinds: given.kinds === undefined ? [] : readKinds(given.kinds, rules, faults),
    signature: signature as SubscriptionFields['signature'],
    format: format as SubscriptionFields['format'],
    ordered: ordered as boolean,
    rateLimit: rateLimit as number | null,
    retrySchedule: schedule as number[] | null,
    description: description as string,
  };
}

function readHeaders(value: unknown, rules: BodyRules, isPatch: boolean, faults: Faults): HeaderPatch {
  return readStaticHeaders(value, rules.headerNames, isPatch, (pointer, message, code) =>
    faults.add(pointer, message, code),
  );
}

function readUrl(value: unknown, { allowInsecure }: BodyRules, faults: Faults): string {
  if (typeof value !== 'string') {
    faults.add('/url', 'must be a URL', 'url_invalid');
    return '';
  }
  const { url, refusal } = checkSubscriberUrl(value, allowInsecure);
  if (refusal !== undefined) faults.add('/url', refusal.message, refusal.code);
  return url ?? '';
}

function readKinds(value: unknown, { catalogue }: BodyRules, faults: Faults): string[] {
  if (!Array.isArray(value) || value.length === 0 || value.length > kindsMax) {
    faults.add('/kinds', `must be an array of 1 to ${kindsMax} kinds`);
    return [];
  }
  for (const [index, pattern] of value.entries()) {
    if (typeof pattern !== 'string' || !matchesAny(pattern, catalogue.kinds.keys())) {
      faults.add(`/kinds/${index}`, 'must be a kind, the first words of one and .*, or *', 'unknown_kind');
    }
  }
  return [...new Set(value as string[])];
}

function readSecret(value: unknown, faults: Faults): string | undefined {
  if (value === undefined || (typeof value === 'string' && isSecret(value))) return value;
  faults.add(
    '/secret',
    `must be whsec_ followed by the base64 of ${secretBytesMin} to ${secretBytesMax} bytes`,
  );
  return undefined;
}

function isSchedule(value: unknown): boolean {
  return (
    Array.isArray(value) &&
    value.length >= 1 &&
    value.length <= retryStepsMax &&
    value.every((step) => isWhole(step, 1, retryStepSecondsMax))
  );
}

function isWhole(value: unknown, min: number, max: number): value is number {
  return Number.isInteger(value) && (value as number) >= min && (value as number) <= max;
}

function list(words: readonly string[]): string {
  return words.map((word) => `"${word}"`).join(', ');
}
