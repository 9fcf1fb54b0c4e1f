/** The operations on apps, their members and invitations, for the OpenAPI document. */

import Type, { type TSchema } from 'typebox';
import {
  bodyProblems,
  createdHeaders,
  Id,
  jsonBody,
  keyParameter,
  links,
  listOf,
  mergePatchBody,
  Nullable,
  pageParameters,
  pathParameter,
  StringEnum,
  strict,
  Time,
} from '../../http/describe.ts';
import type { Operation, ReferencePart } from '../../http/operation.ts';
import { requestSchema } from '../../http/request_schema.ts';
import { roles } from '../app.ts';
import { imageSideMax, imageTypes } from '../images/image.ts';
import { logoBytesMax } from '../logo.ts';
import { asOptional, settableMembers } from '../metadata.ts';

const states = ['unverified', 'verified', 'suspended'] as const;
export const appStates: readonly string[] = states;
export const appOrigins: readonly string[] = ['operator', 'registration', 'document', 'account'];

const secret = {
  id: Id(),
  created_at: Time(),
  created_by: Nullable(Id()),
  expires_at: Nullable(Time()),
};

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
  state: StringEnum(...states),
  origin: StringEnum(...appOrigins),
  created_at: Time(),
  updated_at: Time(),
};

const app = {
  ...clientMembers,
  role: StringEnum(...roles, 'admin'),
  secrets: Type.Array(Type.Object({ ...secret, _links: links }, strict), { maxItems: 100 }),
  _links: links,
};

const shownOnce = {
  client_secret: Type.String(),
  client_secret_expires_at: Type.Integer({ minimum: 0 }),
};

const { client_name: name, ...otherMembers } = settableMembers;
const nullable = (members: Readonly<Record<string, TSchema>>) =>
  Object.fromEntries(Object.entries(members).map(([key, schema]) => [key, Nullable(schema)]));

const schemas: Record<string, TSchema> = {
  App: Type.Object(app, strict),
  AppList: listOf('App'),
  AppMade: Type.Object({ ...app, ...asOptional(shownOnce) }, strict),
  AppCreate: requestSchema(
    Type.Object({ client_name: name as TSchema, ...asOptional(nullable(otherMembers)) }, strict),
  ),
  AppMergePatch: requestSchema(
    Type.Object(
      { client_name: Type.Optional(name as TSchema), ...asOptional(nullable(otherMembers)) },
      strict,
    ),
  ),
  AppSecretMade: Type.Object({ ...secret, ...shownOnce, _links: links }, strict),
  AppMember: Type.Object(
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
  AppMemberList: listOf('AppMember'),
  AppMemberPut: Type.Object({ role: StringEnum(...roles) }, strict),
  AppInvitation: Type.Object(
    {
      id: Id(),
      app: Type.Object(
        { client_id: Type.String(), client_name: Type.String(), logo_uri: Nullable(Type.String()) },
        strict,
      ),
      role: StringEnum(...roles),
      invited_by: Nullable(Type.Object({ name: Type.String(), email: Nullable(Type.String()) }, strict)),
      created_at: Time(),
      expires_at: Time(),
      _links: links,
    },
    strict,
  ),
  AppInvitationList: listOf('AppInvitation'),
  LogoImage: Type.String({
    format: 'binary',
    description: `A PNG, JPEG or WebP image without animation: at most ${logoBytesMax} bytes, and ${imageSideMax} by ${imageSideMax} pixels. Metadata and color profiles are removed.`,
  }),
  EmptyBody: Type.Object({}, strict),
};

export const appId = pathParameter(
  'id',
  'The `client_id` of the app.',
  Type.String({ minLength: 1, maxLength: 2_048 }),
);
const memberId = pathParameter(
  'account',
  'An account id, or a percent-encoded e-mail address. The address of an external account counts only if it is verified. An address that several members share is rejected (409 `ambiguous-address`).',
  Type.String({ minLength: 1, maxLength: 254 }),
);
const secretId = pathParameter('secret', 'The id of the secret.', Id());
const invitationId = pathParameter('id', 'The id of the invitation.', Id());
const read = ['read:apps'];
const write = ['write:apps'];
const exampleApp = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'] };

const appOperations: Operation[] = [
  {
    id: 'list_apps',
    method: 'get',
    path: '/apps',
    tag: 'apps',
    summary: 'List the apps that the signed-in account is a member of',
    scopes: read,
    parameters: pageParameters,
    responses: { 200: { description: 'A page of apps.', schema: 'AppList', headers: ['Link'] } },
    problems: [],
  },
  {
    id: 'create_app',
    method: 'post',
    path: '/apps',
    tag: 'apps',
    summary: 'Create an app; the account becomes its owner',
    scopes: write,
    parameters: [keyParameter],
    body: jsonBody('AppCreate', exampleApp),
    responses: {
      201: {
        description: 'The app with its secret, which is shown once.',
        schema: 'AppMade',
        headers: createdHeaders,
      },
    },
    problems: [409, ...bodyProblems],
  },
  {
    id: 'read_app',
    method: 'get',
    path: '/apps/{id}',
    tag: 'apps',
    summary: 'Read an app',
    scopes: read,
    parameters: [appId],
    responses: { 200: { description: 'The app.', schema: 'App' } },
    problems: [404],
  },
  {
    id: 'patch_app',
    method: 'patch',
    path: '/apps/{id}',
    tag: 'apps',
    summary: 'Change an app; a verified app with a new name, logo, page or redirect URI becomes unverified',
    scopes: write,
    parameters: [appId],
    body: mergePatchBody('AppMergePatch', { client_name: 'Better reader' }),
    responses: { 200: { description: 'The changed app.', schema: 'App' } },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'delete_app',
    method: 'delete',
    path: '/apps/{id}',
    tag: 'apps',
    summary: 'Delete an app with its grants, tokens and subscriptions (owners only)',
    scopes: write,
    parameters: [appId],
    responses: { 204: { description: 'Deleted.' } },
    problems: [404, 413, 415],
  },
  {
    id: 'put_app_logo',
    method: 'put',
    path: '/apps/{id}/logo',
    tag: 'apps',
    summary: 'Upload or replace the logo of an app; a verified app becomes unverified',
    description:
      'The link `logo` of the app is the URL of the logo. A different image has a different URL, so responses may be cached forever. A suspended app has no logo link.',
    scopes: write,
    parameters: [appId],
    body: {
      required: true,
      content: Object.fromEntries(imageTypes.map((type) => [type, { schema: 'LogoImage' }])),
    },
    responses: { 200: { description: 'The changed app.', schema: 'App' } },
    problems: [404, ...bodyProblems],
  },
  {
    id: 'delete_app_logo',
    method: 'delete',
    path: '/apps/{id}/logo',
    tag: 'apps',
    summary: 'Remove the logo of an app; a verified app becomes unverified',
    scopes: write,
    parameters: [appId],
    responses: { 204: { description: 'Removed.' } },
    problems: [404, 413, 415],
  },
  {
    id: 'create_app_secret',
    method: 'post',
    path: '/apps/{id}/secrets',
    tag: 'apps',
    summary: 'Create a secret of an app that was created here; at most two can be live',
    scopes: write,
    parameters: [appId, keyParameter],
    body: jsonBody('EmptyBody', {}, false),
    responses: {
      201: {
        description: 'The secret, which is shown once.',
        schema: 'AppSecretMade',
        headers: createdHeaders,
      },
    },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'delete_app_secret',
    method: 'delete',
    path: '/apps/{id}/secrets/{secret}',
    tag: 'apps',
    summary: 'Delete a secret of an app that was created here, except the last one',
    scopes: write,
    parameters: [appId, secretId],
    responses: { 204: { description: 'Deleted. The secret no longer works.' } },
    problems: [404, 409, 413, 415],
  },
];

const memberOperations: Operation[] = [
  {
    id: 'list_app_members',
    method: 'get',
    path: '/apps/{id}/members',
    tag: 'apps',
    summary: 'List the members and pending invitations of an app',
    scopes: read,
    parameters: [appId, ...pageParameters],
    responses: { 200: { description: 'All members and invitations.', schema: 'AppMemberList' } },
    problems: [404],
  },
  {
    id: 'read_app_member',
    method: 'get',
    path: '/apps/{id}/members/{account}',
    tag: 'apps',
    summary: 'Read a member or an invitation',
    scopes: read,
    parameters: [appId, memberId],
    responses: { 200: { description: 'The member or invitation.', schema: 'AppMember' } },
    problems: [404, 409],
  },
  {
    id: 'put_app_member',
    method: 'put',
    path: '/apps/{id}/members/{account}',
    tag: 'apps',
    summary: 'Change the role of a member, or invite a person by e-mail address (owners only)',
    scopes: write,
    parameters: [appId, memberId],
    body: jsonBody('AppMemberPut', { role: 'developer' }),
    responses: {
      200: { description: 'The role was changed, or the invitation renewed.', schema: 'AppMember' },
      201: {
        description: 'The person was invited, or added by an administrator.',
        schema: 'AppMember',
        headers: ['Location'],
      },
    },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'delete_app_member',
    method: 'delete',
    path: '/apps/{id}/members/{account}',
    tag: 'apps',
    summary: 'Remove a member or cancel an invitation (owners only), or leave the app; not the last owner',
    scopes: write,
    parameters: [appId, memberId],
    responses: { 204: { description: 'Removed.' } },
    problems: [404, 409, 413, 415],
  },
  {
    id: 'list_app_invitations',
    method: 'get',
    path: '/app-invitations',
    tag: 'apps',
    summary: 'List the invitations of the signed-in account',
    scopes: read,
    parameters: pageParameters,
    responses: {
      200: { description: 'A page of invitations.', schema: 'AppInvitationList', headers: ['Link'] },
    },
    problems: [],
  },
  {
    id: 'read_app_invitation',
    method: 'get',
    path: '/app-invitations/{id}',
    tag: 'apps',
    summary: 'Read an invitation',
    scopes: read,
    parameters: [invitationId],
    responses: { 200: { description: 'The invitation.', schema: 'AppInvitation' } },
    problems: [404],
  },
  {
    id: 'accept_app_invitation',
    method: 'post',
    path: '/app-invitations/{id}/accept',
    tag: 'apps',
    summary: 'Accept an invitation',
    scopes: write,
    parameters: [invitationId],
    body: jsonBody('EmptyBody', {}, false),
    responses: { 200: { description: 'The new membership.', schema: 'AppMember' } },
    problems: [404, ...bodyProblems],
  },
  {
    id: 'decline_app_invitation',
    method: 'delete',
    path: '/app-invitations/{id}',
    tag: 'apps',
    summary: 'Decline an invitation',
    scopes: write,
    parameters: [invitationId],
    responses: { 204: { description: 'Declined.' } },
    problems: [404, 413, 415],
  },
];

export function describeApps(): ReferencePart {
  return {
    operations: [...appOperations, ...memberOperations],
    schemas,
    tags: [{ name: 'apps', description: 'The apps of the signed-in app developer and their members.' }],
  };
}
