/** Schemas of subscriptions and deliveries in requests and responses. */

import Type, { type Static, type TSchema } from 'typebox';
import { retryStepSecondsMax, retryStepsMax } from '../../config/config.ts';
import { builtInNames, pingName } from '../../events/built_in_names.ts';
import type { EventKind } from '../../events/kind.ts';
import { patternsOf } from '../../events/kind_pattern.ts';
import { knownVersions } from '../../events/versions.ts';
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
import { authTypes, type GivenAuth, type ShownAuth } from '../../webhooks/subscriptions/subscriber_auth.ts';
import { formats } from '../../webhooks/subscriptions/subscription.ts';
import { FilterSchema } from './filter_body.ts';

/** An object with arbitrary names, typed so that generated clients know the type of its values. */
export const mapOf = <V extends TSchema>(value: V) =>
  Type.Unsafe<Record<string, Static<V>>>({ type: 'object', additionalProperties: value });

const Signature = () => StringEnum(...signatureShapes);
const Format = () => StringEnum(...formats);
/** `agent`: an agent made it over the Model Context Protocol. */
const ShownFormat = () => StringEnum(...formats, 'agent');
const VersionName = () =>
  Type.String({ description: 'A date: of each kind, the newest version that is not later is sent.' });
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
const Credential = (description: string) =>
  worded(
    'a string of 1 to 1024 visible ASCII characters',
    Type.String({ minLength: 1, maxLength: 1_024, pattern: '^[ -~]+$', description }),
  );
const headersOf = <V extends TSchema>(value: V) =>
  Type.Unsafe<Record<string, Static<V>>>({
    type: 'object',
    maxProperties: staticHeadersMax,
    propertyNames: { pattern: headerName },
    additionalProperties: value,
  });

/** Which members belong to which type is checked apart (`checkAuth`), because errors of a union of schemas say less. */
const authMembers = {
  username: Type.Optional(
    worded(
      'a string of 1 to 256 characters without control characters',
      Type.String({
        minLength: 1,
        maxLength: 256,
        pattern: '^[^\\u0000-\\u001f\\u007f-\\u009f]+$',
        description: 'Of `basic`.',
      }),
    ),
  ),
  name: Type.Optional(Type.String({ pattern: headerName, description: 'Of `header`.' })),
  token_url: Type.Optional(worded('a URL', Url(), 'url_invalid')),
  client_id: Type.Optional(Credential('Of `oauth2`.')),
  scope: Type.Optional(
    worded(
      'a string of 1 to 1024 characters: words of visible ASCII, with one space between them',
      Type.String({
        minLength: 1,
        maxLength: 1_024,
        pattern: '^[!#-\\[\\]-~]+( [!#-\\[\\]-~]+)*$',
        description: 'Of `oauth2` (RFC 6749 section 3.3).',
      }),
    ),
  ),
};
const authType = StringEnum(...authTypes);
const AuthShown = named(
  'SubscriberAuth',
  Type.Unsafe<ShownAuth>(
    Type.Object({ type: authType, ...authMembers }, { ...strict, description: 'Without its secret.' }),
  ),
);
const AuthGiven = named(
  'SubscriberAuthGiven',
  Type.Unsafe<GivenAuth>(
    Type.Object(
      {
        type: authType,
        ...authMembers,
        password: Type.Optional(
          worded(
            'a string of 1 to 1024 characters without control characters',
            Type.String({
              minLength: 1,
              maxLength: 1_024,
              pattern: '^[^\\u0000-\\u001f\\u007f-\\u009f]+$',
              description: 'Of `basic`.',
            }),
          ),
        ),
        value: Type.Optional(HeaderValue()),
        client_secret: Type.Optional(Credential('Of `oauth2`.')),
      },
      {
        ...strict,
        description:
          'How deliveries authenticate besides their signature: `basic` with `username` and `password` (RFC 7617), `header` with `name` and `value`, `oauth2` with `token_url`, `client_id`, `client_secret` and optionally `scope` (client credentials), or `mtls` with the deployment’s certificate.',
      },
    ),
  ),
);

const GivenSecret = () =>
  worded(
    `whsec_ followed by the base64 of ${secretBytesMin} to ${secretBytesMax} bytes`,
    Type.String({
      description: '`whsec_` and the base64 of 24 to 64 bytes.',
      pattern: secretPattern,
    }),
  );

const acknowledgedMembers = { sequence: Type.Integer({ minimum: 1 }), at: Time() };
const Acknowledged = Type.Object(acknowledgedMembers, {
  ...strict,
  description: 'How far the subscriber says that it has read.',
});
export const AcknowledgementShown = named('Acknowledgement', Type.Object(acknowledgedMembers, strict));

const AgentShown = Type.Object({ mode: StringEnum('webhook', 'poll'), expires_at: Time() }, strict);

export const subscriptionMembers = {
  id: Id(),
  url: Nullable(
    Type.String({ format: 'uri', maxLength: 2_048, description: 'Null if the subscriber only pulls.' }),
  ),
  kinds: Type.Array(Type.String(), { minItems: 1, maxItems: 100 }),
  signature: Signature(),
  format: ShownFormat(),
  version: Nullable(VersionName()),
  ordered: Type.Boolean(),
  rate_limit: RateLimit(),
  retry_schedule: RetrySchedule(),
  filter: Nullable(FilterSchema),
  description: Description(),
  headers: headersOf(StringEnum(maskedValue)),
  auth: Nullable(AuthShown),
  handshake: Type.Boolean({ description: 'Whether each new URL must echo a challenge.' }),
  state: StringEnum('active', 'disabled'),
  disabled_reason: Type.Optional(Nullable(Type.String())),
  failing_since: Nullable(Time()),
  disables_at: Nullable(Time()),
  acknowledged: Nullable(Acknowledged),
  agent: { ...Nullable(AgentShown), description: 'Null if no agent made the subscription.' },
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

/** The member `version` of the bodies. Without versions, only null can be given: there is nothing to choose. */
function versionMembers(names: readonly string[]) {
  const pattern = `^(${names.join('|')})$`;
  const chosen = <S extends TSchema>(schema: S) =>
    worded(`one of ${names.join(', ')}`, schema, 'unknown-version');
  const create = { version: Type.Optional(chosen(Type.String({ pattern }))) };
  const patch = { version: Type.Optional(chosen(Nullable(Type.String({ pattern })))) };
  if (names.length > 0) return { create, patch };
  return {
    create: {} as typeof create,
    patch: { version: Type.Optional(Type.Null()) } as unknown as typeof patch,
  };
}

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
  const version = versionMembers(knownVersions(declared));
  const choices = {
    rate_limit: Type.Optional(RateLimit()),
    retry_schedule: Type.Optional(RetrySchedule()),
    filter: Type.Optional(Nullable(FilterSchema)),
  };
  return {
    create: named(
      'SubscriptionCreate',
      Type.Object(
        {
          // Null: nothing is sent, and the subscriber reads `/subscriptions/{id}/events`.
          url: Nullable(url),
          kinds,
          ...choices,
          signature: Type.Optional(Signature()),
          format: Type.Optional(Format()),
          ...version.create,
          ordered: Type.Optional(Type.Boolean()),
          description: Type.Optional(Description()),
          headers: Type.Optional(Nullable(headersOf(HeaderValue()))),
          auth: Type.Optional(Nullable(AuthGiven)),
          handshake: Type.Optional(Type.Boolean()),
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
          ...version.patch,
          ordered: Type.Optional(Nullable(Type.Boolean())),
          description: Type.Optional(Nullable(Description())),
          headers: Type.Optional(Nullable(headersOf(Nullable(HeaderValue())))),
          // Replaced as a whole: the members of two types do not fit together.
          auth: Type.Optional(Nullable(AuthGiven)),
          handshake: Type.Optional(Nullable(Type.Boolean())),
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
