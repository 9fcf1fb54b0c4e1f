/** Schemas of apps in requests and responses. */

import Type, { type TSchema } from 'typebox';
import { roles } from '../../apps/app.ts';
import { asOptional, settableMembers } from '../../apps/metadata.ts';
import { links, pathParameter } from '../../http/describe.ts';
import { Id, Nullable, named, StringEnum, strict, Time } from '../../http/schema.ts';

export const tag = 'apps';
export const appStates = ['unverified', 'verified', 'suspended'] as const;
export const appOrigins = ['operator', 'registration', 'document', 'account'] as const;

export const appId = pathParameter(
  'id',
  'The `client_id` of the app.',
  Type.String({ minLength: 1, maxLength: 2_048 }),
);

/** Members as they are returned. Self-registered apps may have values that members cannot set. */
const shownMembers: Record<string, TSchema> = {
  ...asOptional(settableMembers),
  client_name: Type.String(),
  client_uri: Nullable(Type.String()),
  logo_uri: Nullable(Type.String()),
  policy_uri: Nullable(Type.String()),
  tos_uri: Nullable(Type.String()),
  contacts: Type.Array(Type.String()),
  redirect_uris: Type.Array(Type.String()),
  grant_types: Type.Array(Type.String()),
  response_types: Type.Array(Type.String()),
  scope: Type.String(),
  token_endpoint_auth_method: Type.String(),
};

/** The members that `/apps` and `/admin/apps` share. */
export const clientMembers: Record<string, TSchema> = {
  client_id: Type.String(),
  client_id_issued_at: Type.Integer({ minimum: 0 }),
  ...shownMembers,
  state: StringEnum(...appStates),
  origin: StringEnum(...appOrigins),
  created_at: Time(),
  updated_at: Time(),
};

const secret = {
  id: Id(),
  created_at: Time(),
  created_by: Nullable(Id()),
  expires_at: Nullable(Time()),
};

const shownOnce = {
  client_secret: Type.String(),
  client_secret_expires_at: Type.Integer({ minimum: 0 }),
};

const app = {
  ...clientMembers,
  role: StringEnum(...roles, 'admin'),
  secrets: Type.Array(Type.Object({ ...secret, _links: links }, strict), { maxItems: 100 }),
  _links: links,
};

export const AppShown = named('App', Type.Object(app, strict));
export const AppMade = named('AppMade', Type.Object({ ...app, ...asOptional(shownOnce) }, strict));
export const AppSecretMade = named(
  'AppSecretMade',
  Type.Object({ ...secret, ...shownOnce, _links: links }, strict),
);

const { client_name: clientName, ...otherMembers } = settableMembers as Record<string, TSchema> & {
  client_name: TSchema;
};
/** Null means not set. */
const settable = asOptional(
  Object.fromEntries(Object.entries(otherMembers).map(([name, schema]) => [name, Nullable(schema)])),
);
export const AppCreate = named('AppCreate', Type.Object({ client_name: clientName, ...settable }, strict));
/** RFC 7396: null resets a member to its default. */
export const AppMergePatch = named(
  'AppMergePatch',
  Type.Object({ client_name: Type.Optional(clientName), ...settable }, strict),
);

export const AppMember = named(
  'AppMember',
  Type.Object(
    {
      account: Nullable(Id()),
      name: Nullable(Type.String()),
      email: Nullable(Type.String()),
      role: StringEnum(...roles),
      state: StringEnum('active', 'invited'),
      created_at: Time(),
      expires_at: Nullable(Time()),
      _links: links,
    },
    strict,
  ),
);
