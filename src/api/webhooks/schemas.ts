/** Schemas of subscriptions and deliveries in requests and responses. */

import Type, { type Static, type TSchema } from 'typebox';
import { retryStepSecondsMax, retryStepsMax } from '../../config/config.ts';
import { builtInNames, pingName } from '../../events/built_in_names.ts';
import type { EventKind } from '../../events/kind.ts';
import { patternsOf } from '../../events/kind_pattern.ts';
import { links } from '../../http/describe.ts';
import { Id, Nullable, named, StringEnum, strict, Time, Url, worded } from '../../http/schema.ts';
import { deliveryStates } from '../../webhooks/log/delivery.ts';
import { coarseSeconds, errorClasses, fineSeconds, outcomeNames } from '../../webhooks/log/delivery_stats.ts';
import { attemptErrors } from '../../webhooks/sending/attempt_error.ts';
import {
  secretBytesMax,
  secretBytesMin,
  secretPattern,
  signatureShapes,
} from '../../webhooks/subscriptions/signature.ts';
import {
  headerNameBytesMax,
  headerValueBytesMax,
  maskedValue,
  staticHeadersMax,
} from '../../webhooks/subscriptions/static_headers.ts';
import { formats } from '../../webhooks/subscriptions/subscription.ts';

/** An object with arbitrary names, typed so that generated clients know the type of its values. */
export const mapOf = <V extends TSchema>(value: V) =>
  Type.Unsafe<Record<string, Static<V>>>({ type: 'object', additionalProperties: value });

const Signature = () => StringEnum(...signatureShapes);
const Format = () => StringEnum(...formats);
const RateLimit = () =>
  worded(
    'an integer from 1 to 10000 (per second), or null',
    Nullable(Type.Integer({ minimum: 1, maximum: 10_000 })),
  );
const RetrySchedule = () =>
  worded(
    `an array of 1 to ${retryStepsMax} pauses in seconds, each from 1 to ${retryStepSecondsMax}, or null`,
    Nullable(
      Type.Array(Type.Integer({ minimum: 1, maximum: retryStepSecondsMax }), {
        minItems: 1,
        maxItems: retryStepsMax,
      }),
    ),
  );
const Description = () => Type.String({ maxLength: 1_000 });

const headerName = `^[A-Za-z][A-Za-z0-9-]{0,${headerNameBytesMax - 1}}$`;
const HeaderValue = () =>
  worded(
    `a string of 1 to ${headerValueBytesMax} visible ASCII characters, with spaces only between them`,
    Type.String({ minLength: 1, maxLength: headerValueBytesMax, pattern: '^[!-~]([ -~]*[!-~])?$' }),
  );
const headersOf = <V extends TSchema>(value: V) =>
  Type.Unsafe<Record<string, Static<V>>>({
    type: 'object',
    maxProperties: staticHeadersMax,
    propertyNames: { pattern: headerName },
    additionalProperties: value,
  });

const GivenSecret = () =>
  worded(
    `whsec_ followed by the base64 of ${secretBytesMin} to ${secretBytesMax} bytes`,
    Type.String({
      description: '`whsec_` and the base64 of 24 to 64 bytes.',
      pattern: secretPattern,
    }),
  );

export const subscriptionMembers = {
  id: Id(),
  url: Type.String({ format: 'uri', maxLength: 2_048 }),
  kinds: Type.Array(Type.String(), { minItems: 1, maxItems: 100 }),
  signature: Signature(),
  format: Format(),
  ordered: Type.Boolean(),
  rate_limit: RateLimit(),
  retry_schedule: RetrySchedule(),
  description: Description(),
  headers: headersOf(StringEnum(maskedValue)),
  state: StringEnum('active', 'disabled'),
  disabled_reason: Type.Optional(Nullable(Type.String())),
  failing_since: Nullable(Time()),
  disables_at: Nullable(Time()),
  owner: StringEnum('grant', 'user', 'client'),
  grant: Nullable(Id()),
  client: Nullable(Type.String()),
  created_at: Time(),
  updated_at: Time(),
  _links: links,
};

const secret = Type.String({ description: '`whsec_` and the base64 of the key.' });
export const SubscriptionShown = named('Subscription', Type.Object(subscriptionMembers, strict));
export const SubscriptionMade = named(
  'SubscriptionMade',
  Type.Object({ ...subscriptionMembers, secret }, strict),
);
export const SubscriptionSecret = named(
  'SubscriptionSecret',
  Type.Object({ secret, previous_secret: Nullable(secret), previous_secret_until: Nullable(Time()) }, strict),
);
export const SecretRotation = named(
  'SecretRotation',
  Type.Object(
    {
      overlap: Type.Optional(Nullable(Type.Integer({ minimum: 0, maximum: 604_800, default: 86_400 }))),
      secret: Type.Optional(GivenSecret()),
    },
    strict,
  ),
);

/** @param declared the platform's kinds, on which these bodies depend */
export function subscriptionBodies(declared: readonly EventKind[]) {
  const names = declared.map(({ name }) => name);
  const patterns = new Set([...names, ...builtInNames].flatMap(patternsOf));
  // A pattern and not an enumeration, so that generated clients accept other kinds too.
  const choice = [...patterns].map((pattern) => pattern.replaceAll(/[.*]/g, '\\$&')).join('|');
  const kind = worded(
    'a kind, the first words of one and .*, or *',
    Type.String({ pattern: `^(${choice})$` }),
    'unknown-kind',
  );
  const kinds = Type.Array(kind, { minItems: 1, maxItems: 100 });
  const url = worded('a URL', Url(), 'url_invalid');
  const choices = {
    rate_limit: Type.Optional(RateLimit()),
    retry_schedule: Type.Optional(RetrySchedule()),
  };
  return {
    create: named(
      'SubscriptionCreate',
      Type.Object(
        {
          url,
          kinds,
          ...choices,
          signature: Type.Optional(Signature()),
          format: Type.Optional(Format()),
          ordered: Type.Optional(Type.Boolean()),
          description: Type.Optional(Description()),
          headers: Type.Optional(Nullable(headersOf(HeaderValue()))),
          secret: Type.Optional(GivenSecret()),
        },
        strict,
      ),
    ),
    // RFC 7396: null restores the default.
    patch: named(
      'SubscriptionMergePatch',
      Type.Object(
        {
          url: Type.Optional(url),
          kinds: Type.Optional(kinds),
          ...choices,
          signature: Type.Optional(Nullable(Signature())),
          format: Type.Optional(Nullable(Format())),
          ordered: Type.Optional(Nullable(Type.Boolean())),
          description: Type.Optional(Nullable(Description())),
          headers: Type.Optional(Nullable(headersOf(Nullable(HeaderValue())))),
          state: Type.Optional(StringEnum('active', 'disabled')),
        },
        strict,
      ),
    ),
    test: named(
      'TestStart',
      Type.Object(
        {
          kind: Type.Optional(
            worded('a kind in the catalogue', StringEnum(pingName, ...names), 'unknown-kind'),
          ),
        },
        strict,
      ),
    ),
  };
}

export type SubscriptionBodies = ReturnType<typeof subscriptionBodies>;

export const AttemptError = () => StringEnum(...Object.keys(attemptErrors));

export const deliveryMembers = {
  id: Id(),
  event: Type.String(),
  kind: Type.String(),
  subscription: Id(),
  sequence: Type.Integer({ minimum: 1 }),
  state: StringEnum(...deliveryStates),
  attempt_count: Type.Integer({ minimum: 0 }),
  last_status: Nullable(Type.Integer({ description: 'The status of the response to the last attempt.' })),
  last_error: Nullable(AttemptError()),
  created_at: Time(),
  next_attempt_at: Nullable(Time()),
  _links: links,
};

export const milliseconds = Nullable(Type.Number({ minimum: 0 }));

const count = Type.Integer({ minimum: 0 });
const stats = {
  ...Object.fromEntries(outcomeNames.map((name) => [name, count])),
  latency_ms: Type.Object(
    { p50: milliseconds, p90: milliseconds, p99: milliseconds },
    { ...strict, description: 'Estimates: interpolated within a bucket of the histogram of latencies.' },
  ),
  errors: Type.Object(
    Object.fromEntries(errorClasses.map((name) => [name, Type.Optional(Type.Integer({ minimum: 1 }))])),
    strict,
  ),
};

/** Members of a health response. */
export const healthMembers = {
  since: Time(),
  until: Time(),
  bucket_seconds: Type.Integer({ enum: [fineSeconds, coarseSeconds] }),
  buckets: Type.Array(Type.Object({ at: Time(), ...stats }, strict), { maxItems: 1_000 }),
  totals: Type.Object(stats, strict),
  backlog: Type.Object({ pending: count, is_capped: Type.Boolean(), oldest_at: Nullable(Time()) }, strict),
  _links: links,
};
