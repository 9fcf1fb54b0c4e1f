/** The operations of events, subscriptions and deliveries as the reference describes them. */

import Type, { type TSchema } from 'typebox';
import { retryStepSecondsMax, retryStepsMax } from '../../config/config.ts';
import { disabledName, failingName, pingName } from '../../events/built_in_names.ts';
import type { EventKind } from '../../events/kind.ts';
import { patternsOf } from '../../events/kind_pattern.ts';
import { batchEventsMax } from '../../events/publish.ts';
import { mergePatchType } from '../../http/api.ts';
import { keyParameter, pageParameters } from '../../http/describe.ts';
import type { Operation, Parameter, ReferencePart } from '../../http/operation.ts';
import { requestSchema } from '../../http/request_schema.ts';
import { recoverableStates, runningMax } from '../fan_out/recovery.ts';
import { deliveryStates, lookedThroughMax } from '../log/delivery.ts';
import { coarseSeconds, errorClasses, fineSeconds, outcomeNames } from '../log/delivery_stats.ts';
import { secretPattern, signatureShapes } from '../subscriptions/signature.ts';
import {
  headerNameBytesMax,
  headerValueBytesMax,
  maskedValue,
  staticHeadersMax,
} from '../subscriptions/static_headers.ts';
import { formats } from '../subscriptions/subscription.ts';

/** @param kinds the catalogue: an example of publishing needs one */
export function describeWebhooks(kinds: readonly EventKind[]): ReferencePart {
  return {
    operations: [
      ...eventOperations(kinds),
      ...subscriptionOperations,
      ...appSubscriptionOperations,
      ...healthOperations,
      ...deliveryOperations,
      ...recoveryOperations,
    ],
    schemas: { ...schemas, ...requestSchemas(kinds) },
    tags: [
      {
        name: 'events',
        description: 'What happened: the catalogue of kinds, and publishing by machine clients.',
      },
      { name: 'subscriptions', description: 'URLs that are told of events.' },
      { name: 'deliveries', description: 'What was sent, what came back, and what is sent again.' },
    ],
  };
}

const Id = () => Type.String({ format: 'uuid' });
/** Visible ASCII. */
const EventId = () => Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: 255 });
const Time = () => Type.String({ format: 'date-time' });
const Maybe = <S extends TSchema>(schema: S) => Type.Union([schema, Type.Null()]);
const Named = (...names: readonly string[]) => ({ type: 'string', enum: names }) as TSchema;
const strict = { additionalProperties: false };
const reference = (name: string): TSchema => ({ $ref: `#/components/schemas/${name}` });
const links = Type.Record(Type.String(), reference('Link'));
const listOf = (name: string) => Type.Object({ items: Type.Array(reference(name)), _links: links }, strict);

const settings = {
  url: Type.String({ format: 'uri', maxLength: 2_048 }),
  kinds: Type.Array(Type.String(), { minItems: 1, maxItems: 100 }),
  signature: Named(...signatureShapes),
  format: Named(...formats),
  ordered: Type.Boolean(),
  rate_limit: Maybe(Type.Integer({ minimum: 1, maximum: 10_000 })),
  retry_schedule: Maybe(
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
  headers: headersOf(Named(maskedValue)),
  state: Named('active', 'disabled'),
  disabled_reason: Type.Optional(Maybe(Type.String())),
  failing_since: Maybe(Time()),
  disables_at: Maybe(Time()),
  owner: Named('grant', 'user', 'client'),
  grant: Maybe(Id()),
  client: Maybe(Type.String()),
  created_at: Time(),
  updated_at: Time(),
  _links: links,
};

const delivery = {
  id: Id(),
  event: Type.String(),
  kind: Type.String(),
  subscription: Id(),
  sequence: Type.Integer({ minimum: 1 }),
  state: Named(...deliveryStates),
  attempt_count: Type.Integer({ minimum: 0 }),
  created_at: Time(),
  next_attempt_at: Maybe(Time()),
  _links: links,
};

const secret = Type.String({ description: '`whsec_` and the base64 of the key.' });

const count = Type.Integer({ minimum: 0 });
const stats = {
  ...Object.fromEntries(outcomeNames.map((name) => [name, count])),
  latency_ms: Type.Object({ p50: Maybe(count), p90: Maybe(count), p99: Maybe(count) }, strict),
  errors: Type.Object(
    Object.fromEntries(errorClasses.map((name) => [name, Type.Optional(Type.Integer({ minimum: 1 }))])),
    strict,
  ),
};

/** Members of what tells of health. */
export const healthMembers: Record<string, TSchema> = {
  since: Time(),
  until: Time(),
  bucket_seconds: { type: 'integer', enum: [fineSeconds, coarseSeconds] } as TSchema,
  buckets: Type.Array(Type.Object({ at: Time(), ...stats }, strict), { maxItems: 1_000 }),
  totals: Type.Object(stats, strict),
  backlog: Type.Object({ pending: count, is_capped: Type.Boolean(), oldest_at: Maybe(Time()) }, strict),
  _links: links,
};

/** Kinds that nobody publishes, and everybody may subscribe to. */
const builtInNames = [pingName, disabledName, failingName];

/** What requests bring: the catalogue decides what of it is good. */
function requestSchemas(declared: readonly EventKind[]): Record<string, TSchema> {
  const patterns = new Set([...declared.map(({ name }) => name), ...builtInNames].flatMap(patternsOf));
  // A pattern, not an enumeration: programs made from the document work with other kinds too.
  const choice = [...patterns].map((pattern) => pattern.replaceAll(/[.*]/g, '\\$&')).join('|');
  const kinds = Type.Array(Type.String({ pattern: `^(${choice})$` }), { minItems: 1, maxItems: 100 });
  const restorable = Object.fromEntries(
    Object.entries(choices).map(([name, schema]) => [name, Maybe(schema)]),
  );
  const newEvent = (kind: EventKind) =>
    Type.Object(
      { kind: Named(kind.name), account: Id(), body: kind.schema, id: Type.Optional(EventId()) },
      strict,
    );
  return {
    // Without a kind there is nothing to publish.
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
          ...optional({ ...choices, headers: Maybe(headersOf(newHeaderValue)), secret: givenSecret }),
        },
        strict,
      ),
    ),
    // RFC 7396: null brings back the default.
    SubscriptionMergePatch: requestSchema(
      Type.Object(
        optional({
          url,
          kinds,
          ...restorable,
          headers: Maybe(headersOf(Maybe(headerValue))),
          state: Named('active', 'disabled'),
        }),
        strict,
      ),
    ),
    TestStart: Type.Object(
      { kind: Type.Optional(Named(pingName, ...declared.map(({ name }) => name))) },
      strict,
    ),
    SecretRotation: Type.Object(
      {
        overlap: Type.Optional(Maybe(Type.Integer({ minimum: 0, maximum: 604_800, default: 86_400 }))),
        secret: Type.Optional(givenSecret),
      },
      strict,
    ),
  };
}

const schemas: Record<string, TSchema> = {
  Health: Type.Object(healthMembers, strict),
  EventIds: Type.Object({ id: Type.Optional(Type.String()), ids: Type.Array(Type.String()) }, strict),
  EventKind: Type.Object(
    {
      name: Type.String(),
      description: Type.String(),
      scope: Maybe(Type.String()),
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
    { secret, previous_secret: Maybe(secret), previous_secret_until: Maybe(Time()) },
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
      attempts: Type.Array(
        Type.Object({
          number: Type.Integer({ minimum: 1 }),
          at: Time(),
          duration_ms: Maybe(Type.Number()),
          status: Maybe(Type.Integer()),
          error: Maybe(Type.String()),
          request: Maybe(
            Type.Object({
              method: Type.String(),
              url: Type.String(),
              headers: Type.Record(Type.String(), Type.String()),
            }),
          ),
          response: Maybe(Type.Object({ headers: Type.Object({}), body: Type.String() })),
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
        Type.Union([Named(...recoverableStates), Type.Array(Named(...recoverableStates), { minItems: 1 })]),
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
      status: Type.Array(Named(...recoverableStates)),
      state: Named('running', 'done', 'cancelled'),
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
      Type.Object({ kid: Type.String(), key: Type.String(), signs_from: Time(), signs_until: Maybe(Time()) }),
    ),
    _links: links,
  }),
};

const idParameter = (item: string): Parameter => ({
  name: 'id',
  in: 'path',
  description: `Which ${item}.`,
  schema: Id(),
  required: true,
});

const read = ['read:webhooks'];
const write = ['write:webhooks'];
const jsonBody = (schema: string, example: unknown, required = true) => ({
  required,
  content: { 'application/json': { schema, example } },
});
/** Headers of what was made, and is shown again to who comes with the same key. */
const madeOnce = ['Location', 'Idempotency-Replayed'];
const bodyProblems = [413, 415, 422];

function eventOperations(kinds: readonly EventKind[]): Operation[] {
  const kind = kinds.at(-1);
  const example = {
    kind: kind?.name ?? 'push',
    account: '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88',
    body: kind?.example ?? {},
  };
  return [
    {
      id: 'publish_events',
      method: 'post',
      path: '/events',
      tag: 'events',
      summary: 'Publish events',
      description:
        'Takes one event or an array of up to 1,000. All are taken, or none. The same id twice is one event.',
      scopes: ['write:events'],
      parameters: [keyParameter],
      body: jsonBody('NewEvents', example),
      answers: {
        202: { description: 'They are durable.', schema: 'EventIds', headers: ['Idempotency-Replayed'] },
      },
      problems: [409, ...bodyProblems],
    },
    {
      id: 'erase_event_body',
      method: 'delete',
      path: '/events/{id}/body',
      tag: 'events',
      summary: 'Erase the body of an event',
      description:
        'Cancels deliveries that have not been sent. The ids of the event and its deliveries stay.',
      scopes: ['write:events'],
      parameters: [
        {
          name: 'id',
          in: 'path',
          description: 'Which event.',
          schema: EventId(),
          required: true,
        },
      ],
      answers: { 204: { description: 'It is erased.' } },
      problems: [404, 413, 415],
    },
    {
      id: 'list_event_kinds',
      method: 'get',
      path: '/event-kinds',
      tag: 'events',
      summary: 'List the kinds of events',
      scopes: [],
      parameters: [],
      answers: { 200: { description: 'All kinds.', schema: 'EventKindList' } },
      problems: [],
    },
    {
      id: 'read_meta',
      method: 'get',
      path: '/meta',
      tag: 'events',
      summary: 'Read what verifies deliveries',
      description:
        'Returns the addresses that deliveries come from, the names of their headers, and the public keys.',
      scopes: null,
      parameters: [],
      answers: { 200: { description: 'Addresses, shapes of signatures, names of headers.', schema: 'Meta' } },
      problems: [],
    },
  ];
}

const exampleSubscription = {
  url: 'https://app.example/hooks',
  kinds: ['article.*'],
  signature: 'timestamp',
};

const subscriptionOperations: Operation[] = [
  {
    id: 'list_subscriptions',
    method: 'get',
    path: '/subscriptions',
    tag: 'subscriptions',
    summary: 'List subscriptions',
    description:
      'Those of the token’s grant or client. The console’s token lists those of the user and of their apps.',
    scopes: read,
    parameters: pageParameters,
    answers: { 200: { description: 'A page.', schema: 'SubscriptionList', headers: ['Link'] } },
    problems: [],
  },
  {
    id: 'create_subscription',
    method: 'post',
    path: '/subscriptions',
    tag: 'subscriptions',
    summary: 'Subscribe a URL to kinds of events',
    scopes: write,
    parameters: [keyParameter],
    body: jsonBody('SubscriptionCreate', exampleSubscription),
    answers: {
      201: { description: 'With its secret.', schema: 'SubscriptionMade', headers: madeOnce },
    },
    problems: [409, ...bodyProblems],
  },
  {
    id: 'read_subscription',
    method: 'get',
    path: '/subscriptions/{id}',
    tag: 'subscriptions',
    summary: 'Read a subscription',
    scopes: read,
    parameters: [idParameter('subscription')],
    answers: { 200: { description: 'The subscription.', schema: 'Subscription' } },
    problems: [404],
  },
  {
    id: 'patch_subscription',
    method: 'patch',
    path: '/subscriptions/{id}',
    tag: 'subscriptions',
    summary: 'Change a subscription',
    scopes: write,
    parameters: [idParameter('subscription')],
    body: {
      required: true,
      content: Object.fromEntries(
        [mergePatchType, 'application/json'].map((type) => [
          type,
          { schema: 'SubscriptionMergePatch', example: { ordered: true } },
        ]),
      ),
    },
    answers: { 200: { description: 'The subscription as it is now.', schema: 'Subscription' } },
    problems: [404, ...bodyProblems],
  },
  {
    id: 'delete_subscription',
    method: 'delete',
    path: '/subscriptions/{id}',
    tag: 'subscriptions',
    summary: 'End a subscription',
    scopes: write,
    parameters: [idParameter('subscription')],
    answers: { 204: { description: 'It is gone.' } },
    problems: [404, 413, 415],
  },
  {
    id: 'read_subscription_secret',
    method: 'get',
    path: '/subscriptions/{id}/secret',
    tag: 'subscriptions',
    summary: 'Read the secret that signs',
    scopes: write,
    parameters: [idParameter('subscription')],
    answers: {
      200: {
        description: 'The secret, and the one before while it still signs.',
        schema: 'SubscriptionSecret',
      },
    },
    problems: [404],
  },
  {
    id: 'rotate_subscription_secret',
    method: 'post',
    path: '/subscriptions/{id}/rotate-secret',
    tag: 'subscriptions',
    summary: 'Rotate the secret',
    description: 'Makes a new secret. The old one signs beside it for `overlap` seconds.',
    scopes: write,
    parameters: [idParameter('subscription'), keyParameter],
    body: jsonBody('SecretRotation', { overlap: 86_400 }, false),
    answers: {
      200: {
        description: 'The new secret.',
        schema: 'SubscriptionSecret',
        headers: ['Idempotency-Replayed'],
      },
    },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'test_subscription',
    method: 'post',
    path: '/subscriptions/{id}/test',
    tag: 'subscriptions',
    summary: 'Send a test event',
    description: 'Sends a `ping`, or the example of a kind, to this subscription alone.',
    scopes: write,
    parameters: [idParameter('subscription'), keyParameter],
    body: jsonBody('TestStart', { kind: 'push' }, false),
    answers: { 202: { description: 'It is on its way.', schema: 'TestDelivery', headers: madeOnce } },
    problems: [404, 409, ...bodyProblems],
  },
];

const rangeParameters: Parameter[] = [
  { name: 'since', in: 'query', description: 'By default a day before `until`.', schema: Time() },
  { name: 'until', in: 'query', description: 'By default now.', schema: Time() },
];
const healthDescription =
  'Counted by the server as outcomes are written, in buckets of 5 minutes for the last 2 days and of an hour for 31 days. Percentiles are upper bounds of a histogram.';

const healthOperations: Operation[] = [
  {
    id: 'read_subscription_health',
    method: 'get',
    path: '/subscriptions/{id}/health',
    tag: 'subscriptions',
    summary: 'Read a subscription’s health',
    description: healthDescription,
    scopes: read,
    parameters: [idParameter('subscription'), ...rangeParameters],
    answers: { 200: { description: 'Counts, latencies, errors, backlog.', schema: 'Health' } },
    problems: [404],
  },
  {
    id: 'read_app_health',
    method: 'get',
    path: '/apps/{id}/health',
    tag: 'subscriptions',
    summary: 'Read the health of an app’s own subscriptions',
    description: healthDescription,
    scopes: ['read:apps', ...read],
    parameters: [
      {
        name: 'id',
        in: 'path',
        description: 'Which app: its `client_id`.',
        schema: Type.String({ minLength: 1, maxLength: 2_048 }),
        required: true,
      },
      ...rangeParameters,
    ],
    answers: { 200: { description: 'Counts, latencies, errors, backlog.', schema: 'Health' } },
    problems: [404],
  },
];

const appParameter: Parameter = {
  name: 'id',
  in: 'path',
  description: 'Which app: its `client_id`.',
  schema: Type.String({ minLength: 1, maxLength: 2_048 }),
  required: true,
};

const appSubscriptionOperations: Operation[] = [
  {
    id: 'list_app_subscriptions',
    method: 'get',
    path: '/apps/{id}/subscriptions',
    tag: 'subscriptions',
    summary: 'List an app’s own subscriptions, for its members',
    scopes: ['read:apps', ...read],
    parameters: [appParameter, ...pageParameters],
    answers: { 200: { description: 'A page.', schema: 'SubscriptionList', headers: ['Link'] } },
    problems: [404],
  },
  {
    id: 'create_app_subscription',
    method: 'post',
    path: '/apps/{id}/subscriptions',
    tag: 'subscriptions',
    summary:
      'Subscribe a URL to events of every account that granted the app, each within its grant’s scopes',
    scopes: ['write:apps', ...write],
    parameters: [appParameter, keyParameter],
    body: jsonBody('SubscriptionCreate', exampleSubscription),
    answers: {
      201: { description: 'With its secret.', schema: 'SubscriptionMade', headers: madeOnce },
    },
    problems: [404, 409, ...bodyProblems],
  },
];

const deliveryOperations: Operation[] = [
  {
    id: 'list_deliveries',
    method: 'get',
    path: '/subscriptions/{id}/deliveries',
    tag: 'deliveries',
    summary: 'List deliveries',
    description:
      'The newest come first. With `Accept: text/event-stream` the newest 100 come as server-sent events, the oldest of them first, and then each delivery that is new or has changed: `event: delivery`, `id` (the sequence), `data` (a delivery as in the list). The last event is `end`, with the reason.',
    scopes: read,
    parameters: [
      idParameter('subscription'),
      ...pageParameters,
      {
        name: 'status',
        in: 'query',
        description: 'Only those in this state.',
        schema: Named(...deliveryStates),
      },
      {
        name: 'kind',
        in: 'query',
        description: 'Only those of this kind.',
        schema: requestSchema(Type.String()),
      },
      { name: 'since', in: 'query', description: 'Only those made at this time or later.', schema: Time() },
      { name: 'until', in: 'query', description: 'Only those made before this time.', schema: Time() },
      { name: 'id', in: 'query', description: 'Only the one with this id.', schema: Id() },
    ],
    answers: {
      200: {
        description: `A page. It looks through ${lookedThroughMax} deliveries at most: with \`status\` or \`kind\` it may be shorter than \`limit\`, or empty, and still have \`next\`.`,
        schema: 'DeliveryList',
        headers: ['Link'],
      },
    },
    problems: [404],
  },
  {
    id: 'read_delivery',
    method: 'get',
    path: '/deliveries/{id}',
    tag: 'deliveries',
    summary: 'Read a delivery',
    description: 'Includes its body and every attempt.',
    scopes: read,
    parameters: [idParameter('delivery')],
    answers: { 200: { description: 'The delivery.', schema: 'DeliveryDetails' } },
    problems: [404],
  },
  {
    id: 'resend_delivery',
    method: 'post',
    path: '/deliveries/{id}/resend',
    tag: 'deliveries',
    summary: 'Resend a delivery',
    description: 'Sends it again under the same id.',
    scopes: write,
    parameters: [idParameter('delivery'), keyParameter],
    body: jsonBody('Nothing', {}, false),
    answers: { 202: { description: 'It is on its way.', schema: 'Delivery', headers: madeOnce } },
    problems: [404, 409, ...bodyProblems],
  },
];

const jobParameter: Parameter = {
  name: 'job',
  in: 'path',
  description: 'Which recovery.',
  schema: Id(),
  required: true,
};

const recoveryOperations: Operation[] = [
  {
    id: 'start_recovery',
    method: 'post',
    path: '/subscriptions/{id}/recover',
    tag: 'deliveries',
    summary: 'Recover a range of time',
    description: `Sends again what failed or was held, and what was missed before the subscription was made. At most ${runningMax} recoveries run at once.`,
    scopes: write,
    parameters: [idParameter('subscription'), keyParameter],
    body: jsonBody('RecoveryStart', { since: '2026-07-01T00:00:00Z', status: ['failed', 'held'] }),
    answers: { 202: { description: 'It has begun.', schema: 'Recovery', headers: madeOnce } },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'read_recovery',
    method: 'get',
    path: '/subscriptions/{id}/recoveries/{job}',
    tag: 'deliveries',
    summary: 'Read a recovery',
    description: 'Says how far it is.',
    scopes: read,
    parameters: [idParameter('subscription'), jobParameter],
    answers: { 200: { description: 'The recovery.', schema: 'Recovery' } },
    problems: [404],
  },
  {
    id: 'cancel_recovery',
    method: 'delete',
    path: '/subscriptions/{id}/recoveries/{job}',
    tag: 'deliveries',
    summary: 'Cancel a recovery',
    description: 'What is already due is still sent.',
    scopes: write,
    parameters: [idParameter('subscription'), jobParameter],
    answers: { 204: { description: 'It does not go on.' } },
    problems: [404, 413, 415],
  },
];
