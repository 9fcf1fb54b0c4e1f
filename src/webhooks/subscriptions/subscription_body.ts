/**
 * What an owner sends to make or change a subscription, checked. Every fault is told at once.
 */

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
  /** Whether `http` and loopback hosts are let through. */
  allowInsecure: boolean;
  /** The deployment's own header names: not for static headers. */
  headerNames: readonly string[];
}

/** Faults told of in one answer at most. */
export const faultsMax = 100;

/** Faults of one body, gathered. */
class Faults {
  readonly #faults: BodyFault[] = [];

  add(pointer: string, message: string, code?: string): void {
    if (this.#faults.length >= faultsMax) return;
    this.#faults.push({ pointer, message, ...(code === undefined ? {} : { code }) });
  }

  /** @throws Problem 422 where there are any */
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

/** A JSON merge patch (RFC 7396): null brings back the default. @throws Problem 422 */
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
  // What is left alone is not checked again: the operator may have taken a kind away meanwhile.
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
  if (state !== 'active' && state !== 'disabled') faults.add('/state', 'may be "active" or "disabled"');
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

/** For what needs no more than being asked for. @throws Problem 422 */
export function readNothing(body: unknown): void {
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
    faults.add('/overlap', `may be a whole number of seconds from 0 to ${overlapSecondsMax}`);
  }
  const secret = readSecret(given.secret, faults);
  faults.raise();
  return { secret, overlapSeconds: overlap as number };
}

/** Which kind's example is to be sent; undefined for none. @throws Problem 422 */
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
    faults.add('/signature', `may be ${list(signatureShapes)}`);
  if (!formats.includes(format as never)) faults.add('/format', `may be ${list(formats)}`);
  if (typeof ordered !== 'boolean') faults.add('/ordered', 'may be true or false');
  if (rateLimit !== null && !isWhole(rateLimit, 1, rateLimitMax)) {
    faults.add('/rate_limit', `may be a whole number from 1 to ${rateLimitMax} (a second), or null`);
  }
  if (schedule !== null && !isSchedule(schedule)) {
    faults.add(
      '/retry_schedule',
      `may be 1 to ${retryStepsMax} pauses in seconds, each from 1 to ${retryStepSecondsMax}, or null`,
    );
  }
  if (typeof description !== 'string' || [...description].length > descriptionCharactersMax) {
    faults.add('/description', `may be a text of at most ${descriptionCharactersMax} characters`);
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
  faults.add('/secret', `may be whsec_ and the base64 of ${secretBytesMin} to ${secretBytesMax} bytes`);
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
