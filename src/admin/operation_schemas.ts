/** The schemas of the administration API, for the OpenAPI document. */

import Type, { type TSchema } from 'typebox';
import { identitiesMax } from '../accounts/upstream/identity.ts';
import { clientMembers } from '../apps/api/operations.ts';
import { Id, links, listOf, Nullable, StringEnum, strict, Time } from '../http/describe.ts';
import { healthMembers, subscriptionMembers } from '../webhooks/api/reference/schemas.ts';

const count = Type.Object({ count: Type.Integer({ minimum: 0 }), is_estimate: Type.Boolean() }, strict);

const reason = Type.Optional(Nullable(Type.String({ maxLength: 500 })));

const accountName = Nullable(
  Type.String({ description: 'The email address, or else the name or the external id.' }),
);

/** The position of an event, in decimal digits. It is a text, because it may exceed what a JSON number holds exactly. */
export const Position = () => Type.String({ minLength: 1, maxLength: 18 });

/** Without `body_json`, the body as PostgreSQL formats it, which only the response for a single event contains. */
const rejectedMembers = {
  id: Id(),
  event: Type.String(),
  kind: Type.String(),
  account: Type.String(),
  reason: Type.String(),
  errors: Type.Array(
    Type.Object(
      { pointer: Type.String(), message: Type.String(), code: Type.Optional(Type.String()) },
      strict,
    ),
  ),
  published_at: Time(),
  rejected_at: Time(),
  _links: links,
};

const identityMembers = {
  provider: Type.String(),
  issuer: Type.String(),
  subject: Type.String(),
  label: Type.String(),
  created_at: Time(),
  last_used_at: Time(),
};

export const adminSchemas: Record<string, TSchema> = {
  AdminAccount: Type.Object(
    {
      id: Id(),
      external_id: Nullable(Type.String()),
      email: Nullable(Type.String()),
      name: Type.String(),
      is_admin: Type.Boolean(),
      state: StringEnum('active', 'disabled'),
      created_at: Time(),
      disabled_at: Nullable(Time()),
      // Only where one account is read.
      identities: Type.Optional(
        Type.Array(Type.Object(identityMembers, strict), { maxItems: identitiesMax }),
      ),
      _links: links,
    },
    strict,
  ),
  AdminAccountList: listOf('AdminAccount'),
  AdminApp: Type.Object({ ...clientMembers, _links: links }, strict),
  AdminAppList: listOf('AdminApp'),
  AdminReason: Type.Object({ reason }, strict),
  AdminVerification: Type.Object({ reason, updated_at: Time() }, strict),
  AdminGrant: Type.Object(
    {
      id: Id(),
      account: Id(),
      client: Type.String(),
      first_party: Type.Boolean(),
      scopes: Type.Array(Type.String()),
      created_at: Time(),
      last_used_at: Nullable(Time()),
      _links: links,
    },
    strict,
  ),
  AdminGrantList: listOf('AdminGrant'),
  AdminSubscription: Type.Object(
    {
      ...subscriptionMembers,
      account: Nullable(Id()),
      account_name: accountName,
      client_name: Nullable(Type.String()),
    },
    strict,
  ),
  AdminSubscriptionList: listOf('AdminSubscription'),
  RejectedEvent: Type.Object(rejectedMembers, strict),
  RejectedEventList: listOf('RejectedEvent'),
  RejectedEventWithBody: Type.Object({ ...rejectedMembers, body_json: Type.String() }, strict),
  RejectedEventCorrection: Type.Object(
    {
      kind: Type.Optional(Type.String({ minLength: 1, maxLength: 255 })),
      account: Type.Optional(Type.String({ minLength: 1, maxLength: 255 })),
      body: Type.Optional(Type.Unknown()),
    },
    strict,
  ),
  RetriedEvent: Type.Object({ id: Type.String() }, strict),
  ParkedEvent: Type.Object(
    {
      position: Position(),
      // Null if the event no longer exists.
      event: Nullable(Type.String()),
      kind: Nullable(Type.String()),
      account: Nullable(Id()),
      reason: Type.String({ maxLength: 500 }),
      parked_at: Time(),
      _links: links,
    },
    strict,
  ),
  ParkedEventList: listOf('ParkedEvent'),
  RetriedParkedEvent: Type.Object({ position: Position() }, strict),
  AuditEntry: Type.Object(
    {
      id: Type.String(),
      at: Time(),
      kind: Type.String(),
      actor: Nullable(Type.String()),
      actor_name: Nullable(Type.String()),
      account: Nullable(Id()),
      account_name: accountName,
      email: Nullable(Type.String()),
      client: Nullable(Type.String()),
      client_name: Nullable(Type.String()),
      grant: Nullable(Id()),
      details: Type.Object({}),
    },
    strict,
  ),
  AuditEntryList: listOf('AuditEntry'),
  AdminKeys: Type.Object(
    {
      signing_keys: Type.Array(
        Type.Object(
          {
            kid: Type.String(),
            algorithm: Type.String(),
            state: StringEnum('next', 'current', 'previous'),
            created_at: Time(),
            signs_from: Time(),
            expires_at: Nullable(Time()),
          },
          strict,
        ),
      ),
      delivery_keys: Type.Array(
        Type.Object(
          {
            kid: Type.String(),
            created_at: Time(),
            signs_from: Time(),
            signs_until: Nullable(Time()),
            expires_at: Nullable(Time()),
          },
          strict,
        ),
      ),
      _links: links,
    },
    strict,
  ),
  AdminNodes: Type.Object(
    {
      items: Type.Array(
        Type.Object(
          {
            id: Type.String(),
            host: Type.String(),
            process: Type.String(),
            alive_until: Time(),
            state: StringEnum('alive', 'gone'),
          },
          strict,
        ),
      ),
      _links: links,
    },
    strict,
  ),
  AdminStats: Type.Object(
    {
      ...healthMembers,
      accounts: count,
      apps: count,
      grants: count,
      subscriptions: count,
      events_waiting: count,
    },
    strict,
  ),
  AdminSettings: Type.Object(
    {
      version: Type.String(),
      settings: Type.Array(
        Type.Object(
          {
            name: Type.String(),
            value: {} as TSchema,
            is_secret: Type.Boolean(),
            section: StringEnum('environment', 'platform'),
          },
          strict,
        ),
      ),
      _links: links,
    },
    strict,
  ),
};
