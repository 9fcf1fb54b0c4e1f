/** Schemas of events, subscriptions and deliveries in requests and responses. */

import Type, { type TSchema } from 'typebox';
import { retryStepSecondsMax, retryStepsMax } from '../../../config/config.ts';
import { batchEventsMax } from '../../../events/batch.ts';
import { disabledName, failingName, pingName } from '../../../events/built_in_names.ts';
import type { EventKind } from '../../../events/kind.ts';
import { patternsOf } from '../../../events/kind_pattern.ts';
import { requestSchema } from '../../../http/request_schema.ts';
import { recoverableStates } from '../../fan_out/recovery.ts';
import { deliveryStates } from '../../log/delivery.ts';
import { coarseSeconds, errorClasses, fineSeconds, outcomeNames } from '../../log/delivery_stats.ts';
import { attemptErrors } from '../../sending/attempt_error.ts';
import { secretPattern, signatureShapes } from '../../subscriptions/signature.ts';
import {
  headerNameBytesMax,
  headerValueBytesMax,
  maskedValue,
  staticHeadersMax,
} from '../../subscriptions/static_headers.ts';
import { formats } from '../../subscriptions/subscription.ts';
import { EventId, Id, links, listOf, mapOf, Nullable, reference, StringEnum, strict, Time } from './parts.ts';

const settings = {
  url: Type.String({ format: 'uri', maxLength: 2_048 }),
  kinds: Type.Array(Type.String(), { minItems: 1, maxItems: 100 }),
  signature: StringEnum(...signatureShapes),
  format: StringEnum(...formats),
  ordered: Type.Boolean(),
  rate_limit: Nullable(Type.Integer({ minimum: 1, maximum: 10_000 })),
  retry_schedule: Nullable(
    Type.Array(Type.Integer({ minimum: 1, maximum: retryStepSecondsMax }), {
      minItems: 1,
      maxItems: retryStepsMax,
    }),
  ),
  description: Type.String({ maxLength: 1_000 }),
};

const headerName = `^[A-Za-z][A-Za-z0-9-]{0,${headerNameBytesMax - 1}}$`;
const headerValue = Type.String({
  minLength: 1,
  maxLength: headerValueBytesMax,
  pattern: '^[!-~]([ -~]*[!-~])?$',
});
const newHeaderValue = { ...headerValue, not: { const: maskedValue } } as TSchema;
const headersOf = (value: TSchema): TSchema =>
  ({
    type: 'object',
    maxProperties: staticHeadersMax,
    propertyNames: { pattern: headerName },
    additionalProperties: value,
  }) as TSchema;

const { url, kinds: _, ...choices } = settings;
const givenSecret = Type.String({
  description: '`whsec_` and the base64 of 24 to 64 bytes.',
  pattern: secretPattern,
});
const optional = (properties: Record<string, TSchema>) =>
  Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, Type.Optional(schema)]));

export const subscriptionMembers = {
  id: Id(),
  ...settings,
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

const attemptError = StringEnum(...Object.keys(attemptErrors));

const delivery = {
  id: Id(),
  event: Type.String(),
  kind: Type.String(),
  subscription: Id(),
  sequence: Type.Integer({ minimum: 1 }),
  state: StringEnum(...deliveryStates),
  attempt_count: Type.Integer({ minimum: 0 }),
  last_status: Nullable(Type.Integer({ description: 'The status of the response to the last attempt.' })),
  last_error: Nullable(attemptError),
  created_at: Time(),
  next_attempt_at: Nullable(Time()),
  _links: links,
};

const secret = Type.String({ description: '`whsec_` and the base64 of the key.' });
const milliseconds = Nullable(Type.Number({ minimum: 0 }));

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
export const healthMembers: Record<string, TSchema> = {
  since: Time(),
  until: Time(),
  bucket_seconds: { type: 'integer', enum: [fineSeconds, coarseSeconds] } as TSchema,
  buckets: Type.Array(Type.Object({ at: Time(), ...stats }, strict), { maxItems: 1_000 }),
  totals: Type.Object(stats, strict),
  backlog: Type.Object({ pending: count, is_capped: Type.Boolean(), oldest_at: Nullable(Time()) }, strict),
  _links: links,
};

/** Built-in kinds. Only the server publishes them, and any subscription can receive them. */
const builtInNames = [pingName, disabledName, failingName];

/** Schemas of request bodies, which depend on the catalogue. */
export function requestSchemas(declared: readonly EventKind[]): Record<string, TSchema> {
  const patterns = new Set([...declared.map(({ name }) => name), ...builtInNames].flatMap(patternsOf));
  // A pattern and not an enumeration, so that generated clients accept other kinds too.
  const choice = [...patterns].map((pattern) => pattern.replaceAll(/[.*]/g, '\\$&')).join('|');
  const kinds = Type.Array(Type.String({ pattern: `^(${choice})$` }), { minItems: 1, maxItems: 100 });
  const restorable = Object.fromEntries(
    Object.entries(choices).map(([name, schema]) => [name, Nullable(schema)]),
  );
  const newEvent = (kind: EventKind) =>
    Type.Object(
      {
        kind: StringEnum(kind.name),
        account: reference('AccountName'),
        body: kind.schema,
        id: Type.Optional(EventId()),
      },
      strict,
    );
  return {
    // Without declared kinds, there is nothing to publish.
    NewEvent: declared.length === 0 ? ({ not: {} } as TSchema) : Type.Union(declared.map(newEvent)),
    NewEvents: Type.Union([
      reference('NewEvent'),
      Type.Array(reference('NewEvent'), { minItems: 1, maxItems: batchEventsMax }),
    ]),
    SubscriptionCreate: requestSchema(
      Type.Object(
        {
          url,
          kinds,
          ...optional({ ...choices, headers: Nullable(headersOf(newHeaderValue)), secret: givenSecret }),
        },
        strict,
      ),
    ),
    // RFC 7396: null restores the default.
    SubscriptionMergePatch: requestSchema(
      Type.Object(
        optional({
          url,
          kinds,
          ...restorable,
          headers: Nullable(headersOf(Nullable(headerValue))),
          state: StringEnum('active', 'disabled'),
        }),
        strict,
      ),
    ),
    TestStart: Type.Object(
      { kind: Type.Optional(StringEnum(pingName, ...declared.map(({ name }) => name))) },
      strict,
    ),
    SecretRotation: Type.Object(
      {
        overlap: Type.Optional(Nullable(Type.Integer({ minimum: 0, maximum: 604_800, default: 86_400 }))),
        secret: Type.Optional(givenSecret),
      },
      strict,
    ),
  };
}

export const schemas: Record<string, TSchema> = {
  Health: Type.Object(healthMembers, strict),
  EventIds: Type.Object({ id: Type.Optional(Type.String()), ids: Type.Array(Type.String()) }, strict),
  EventKind: Type.Object(
    {
      name: Type.String(),
      description: Type.String(),
      scope: Nullable(Type.String()),
      schema: {} as TSchema,
      example: {} as TSchema,
    },
    strict,
  ),
  EventKindList: listOf('EventKind'),
  Subscription: Type.Object(subscriptionMembers, strict),
  SubscriptionList: listOf('Subscription'),
  SubscriptionMade: Type.Object({ ...subscriptionMembers, secret }, strict),
  SubscriptionSecret: Type.Object(
    { secret, previous_secret: Nullable(secret), previous_secret_until: Nullable(Time()) },
    strict,
  ),
  Nothing: Type.Object({}, strict),
  TestDelivery: Type.Object({ delivery: Id(), _links: links }, strict),
  Delivery: Type.Object(delivery, strict),
  DeliveryList: listOf('Delivery'),
  DeliveryDetails: Type.Object(
    {
      ...delivery,
      body: {} as TSchema,
      attempts: Type.Array(reference('Attempt')),
    },
    strict,
  ),
  Attempt: Type.Object(
    {
      number: Type.Integer({ minimum: 1 }),
      trigger: StringEnum('schedule', 'manual', 'recovery'),
      at: Time(),
      duration_ms: milliseconds,
      timings: Type.Object(
        { dns_ms: milliseconds, connect_ms: milliseconds, tls_ms: milliseconds, first_byte_ms: milliseconds },
        { ...strict, description: 'Null for a step that an existing connection did not need.' },
      ),
      connection: Nullable(StringEnum('kept', 'new, IPv4', 'new, IPv6')),
      status: Nullable(Type.Integer()),
      error: Nullable(attemptError),
      error_detail: Nullable(Type.String({ description: 'The error in words.' })),
      revision: Type.Integer({
        minimum: 1,
        description: 'The revision of the subscription that the attempt used.',
      }),
      request: Nullable(
        Type.Object({ method: Type.String(), url: Type.String(), headers: mapOf(Type.String()) }, strict),
      ),
      response: Nullable(
        Type.Object(
          {
            headers: mapOf(Type.Union([Type.String(), Type.Array(Type.String())])),
            body: Type.String(),
            encoding: StringEnum('utf-8', 'base64'),
            truncated: Type.Boolean(),
          },
          strict,
        ),
      ),
      response_omitted: Type.Optional(
        Type.Boolean({
          description:
            'Whether the response is not stored because the account’s daily quota of response bytes is used up.',
        }),
      ),
    },
    strict,
  ),
  RecoveryStart: Type.Object(
    {
      since: Time(),
      until: Type.Optional(Time()),
      status: Type.Optional(
        Type.Union([
          StringEnum(...recoverableStates),
          Type.Array(StringEnum(...recoverableStates), { minItems: 1 }),
        ]),
      ),
    },
    strict,
  ),
  Recovery: Type.Object(
    {
      id: Id(),
      subscription: Id(),
      since: Time(),
      until: Time(),
      status: Type.Array(StringEnum(...recoverableStates)),
      state: StringEnum('running', 'done', 'cancelled'),
      resent: Type.Integer({ minimum: 0 }),
      added: Type.Integer({ minimum: 0 }),
      created_at: Time(),
      _links: links,
    },
    strict,
  ),
  Meta: Type.Object({
    issuer: Type.String({ format: 'uri' }),
    addresses: Type.Array(Type.String()),
    signatures: Type.Array(Type.String()),
    headers: Type.Record(Type.String(), Type.String()),
    public_keys: Type.Array(
      Type.Object({
        kid: Type.String(),
        key: Type.String(),
        signs_from: Time(),
        signs_until: Nullable(Time()),
      }),
    ),
    _links: links,
  }),
};
