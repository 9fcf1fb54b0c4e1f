/** Validates the body of requests that create or change a subscription, and reports all errors at once. */

import { retryStepSecondsMax, retryStepsMax } from '../../config/config.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import { matchesAny } from '../../events/kind_pattern.ts';
import { bodyProblem, type ValidationError } from '../../http/problem.ts';
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

/** Maximum errors in one response. */
export const errorsMax = 100;

/** Collects the errors of one body. */
class ValidationErrors {
  readonly #errors: ValidationError[] = [];

  add(pointer: string, message: string, code?: string): void {
    if (this.#errors.length >= errorsMax) return;
    this.#errors.push({ pointer, message, ...(code === undefined ? {} : { code }) });
  }

  /** @throws Problem 422 if any error was added */
  raise(): void {
    if (this.#errors.length > 0) throw bodyProblem(this.#errors);
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
  value: unknown,
  rules: BodyRules,
): SubscriptionFields & { secret: string | undefined; headers: StaticHeaders } {
  const errors = new ValidationErrors();
  const body = readObject(value, [...changeable, 'secret'], errors);
  if (body.url === undefined) errors.add('/url', 'is required');
  if (body.kinds === undefined) errors.add('/kinds', 'is required');
  const fields = readFields(body, rules, errors);
  const secret = readSecret(body.secret, errors);
  const headers = readHeaders(body.headers, rules, false, errors);
  errors.raise();
  return { ...fields, secret, headers: (headers ?? {}) as StaticHeaders };
}

/** Reads a JSON merge patch (RFC 7396). Null restores the default. @throws Problem 422 */
export function readSubscriptionPatch(
  patch: unknown,
  current: Subscription,
  rules: BodyRules,
): SubscriptionFields & { state: SubscriptionState; headers: HeaderPatch | undefined } {
  const errors = new ValidationErrors();
  const body = readObject(patch, [...changeable, 'state'], errors);
  for (const name of ['url', 'kinds', 'state']) {
    if (body[name] === null) errors.add(`/${name}`, 'cannot be removed');
  }
  errors.raise();
  // Properties that the patch omits are not validated again: the operator may have removed a kind from the catalogue
  // since.
  const whole: Body = {
    signature: current.signature,
    format: current.format,
    ordered: current.ordered,
    rate_limit: current.rateLimit,
    retry_schedule: current.retrySchedule,
    description: current.description,
    ...body,
  };
  for (const name of ['signature', 'format', 'ordered', 'description']) {
    if (whole[name] === null) delete whole[name];
  }
  const fields = readFields(whole, rules, errors);
  const state = body.state ?? current.state;
  if (state !== 'active' && state !== 'disabled') errors.add('/state', 'must be "active" or "disabled"');
  const headers = body.headers === undefined ? undefined : readHeaders(body.headers, rules, true, errors);
  errors.raise();
  const { url, kinds } = current;
  return {
    ...fields,
    ...(body.url === undefined ? { url } : {}),
    ...(body.kinds === undefined ? { kinds } : {}),
    state: state as SubscriptionState,
    headers,
  };
}

/** Accepts no body or an empty object. @throws Problem 422 */
export function requireEmptyBody(body: unknown): void {
  if (body === undefined) return;
  const errors = new ValidationErrors();
  readObject(body, [], errors);
  errors.raise();
}

/** @throws Problem 422 */
export function readRotation(value: unknown): { secret: string | undefined; overlapSeconds: number } {
  const errors = new ValidationErrors();
  const body = readObject(value === undefined ? {} : value, ['overlap', 'secret'], errors);
  const overlap = body.overlap ?? overlapSecondsDefault;
  if (!isWhole(overlap, 0, overlapSecondsMax)) {
    errors.add('/overlap', `must be an integer of seconds from 0 to ${overlapSecondsMax}`);
  }
  const secret = readSecret(body.secret, errors);
  errors.raise();
  return { secret, overlapSeconds: overlap as number };
}

/** Reads the kind whose example is sent; undefined for a ping. @throws Problem 422 */
export function readTestKind(body: unknown): string | undefined {
  const errors = new ValidationErrors();
  const { kind } = readObject(body === undefined ? {} : body, ['kind'], errors);
  if (kind !== undefined && typeof kind !== 'string') errors.add('/kind', 'must be a kind', 'unknown_kind');
  errors.raise();
  return kind as string | undefined;
}

function readObject(body: unknown, known: readonly string[], errors: ValidationErrors): Body {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    errors.add('', 'must be an object');
    errors.raise();
  }
  for (const name of Object.keys(body as Body)) {
    if (!known.includes(name)) {
      errors.add(`/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, 'is not a known property');
    }
  }
  return { ...(body as Body) };
}

function readFields(body: Body, rules: BodyRules, errors: ValidationErrors): SubscriptionFields {
  const { signature = 'timestamp', format = 'json', ordered = false, description = '' } = body;
  const rateLimit = body.rate_limit ?? null;
  const schedule = body.retry_schedule ?? null;
  if (!isOneOf(signatureShapes, signature))
    errors.add('/signature', `must be one of ${list(signatureShapes)}`);
  if (!isOneOf(formats, format)) errors.add('/format', `must be one of ${list(formats)}`);
  if (typeof ordered !== 'boolean') errors.add('/ordered', 'must be true or false');
  if (rateLimit !== null && !isWhole(rateLimit, 1, rateLimitMax)) {
    errors.add('/rate_limit', `must be an integer from 1 to ${rateLimitMax} (per second), or null`);
  }
  if (schedule !== null && !isSchedule(schedule)) {
    errors.add(
      '/retry_schedule',
      `must be 1 to ${retryStepsMax} pauses in seconds, each from 1 to ${retryStepSecondsMax}, or null`,
    );
  }
  if (typeof description !== 'string' || [...description].length > descriptionCharactersMax) {
    errors.add('/description', `must be a string of at most ${descriptionCharactersMax} characters`);
  }
  return {
    url: body.url === undefined ? '' : readUrl(body.url, rules, errors),
    kinds: body.kinds === undefined ? [] : readKinds(body.kinds, rules, errors),
    signature: signature as SubscriptionFields['signature'],
    format: format as SubscriptionFields['format'],
    ordered: ordered as boolean,
    rateLimit: rateLimit as number | null,
    retrySchedule: schedule as number[] | null,
    description: description as string,
  };
}

function readHeaders(
  value: unknown,
  rules: BodyRules,
  isPatch: boolean,
  errors: ValidationErrors,
): HeaderPatch {
  return readStaticHeaders(value, rules.headerNames, isPatch, (pointer, message, code) =>
    errors.add(pointer, message, code),
  );
}

function readUrl(value: unknown, { allowInsecure }: BodyRules, errors: ValidationErrors): string {
  if (typeof value !== 'string') {
    errors.add('/url', 'must be a URL', 'url_invalid');
    return '';
  }
  const { url, error } = checkSubscriberUrl(value, allowInsecure);
  if (error !== undefined) errors.add('/url', error.message, error.code);
  return url ?? '';
}

function readKinds(value: unknown, { catalogue }: BodyRules, errors: ValidationErrors): string[] {
  if (!Array.isArray(value) || value.length === 0 || value.length > kindsMax) {
    errors.add('/kinds', `must be an array of 1 to ${kindsMax} kinds`);
    return [];
  }
  for (const [index, pattern] of value.entries()) {
    if (typeof pattern !== 'string' || !matchesAny(pattern, catalogue.kinds.keys())) {
      errors.add(`/kinds/${index}`, 'must be a kind, the first words of one and .*, or *', 'unknown_kind');
    }
  }
  return [...new Set(value as string[])];
}

function readSecret(value: unknown, errors: ValidationErrors): string | undefined {
  if (value === undefined || (typeof value === 'string' && isSecret(value))) return value;
  errors.add(
    '/secret',
    `must be whsec_ followed by the base64 of ${secretBytesMin} to ${secretBytesMax} bytes`,
  );
  return undefined;
}

function isOneOf<Value>(values: readonly Value[], value: unknown): value is Value {
  return (values as readonly unknown[]).includes(value);
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
