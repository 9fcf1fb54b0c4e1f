/** The operations of the accounts API as the reference describes them. */

import Type, { type TSchema } from 'typebox';
import { externalIdCharactersMax } from '../accounts/external_account.ts';
import { loginScope, readAccountsScope, writeAccountsScope } from '../grants/scopes.ts';
import {
  bodyProblems,
  Id,
  jsonBody,
  keyParameter,
  links,
  listOf,
  Maybe,
  mergePatchBody,
  Named,
  pageParameters,
  pathParameter,
  queryParameter,
  reference,
  strict,
  Time,
} from '../http/describe.ts';
import type { Operation, ReferencePart } from '../http/operation.ts';
import { requestSchema } from '../http/request_schema.ts';
import { returnToCharactersMax } from './link_routes.ts';
import {
  acrCharactersMax,
  amrCharactersMax,
  amrMax,
  descriptionCharactersMax,
  loginErrors,
} from './login_answers.ts';
import { accountsMax, emailCharactersMax, nameCharactersMax } from './members.ts';

/** No control characters: C0, DEL and C1. */
const ExternalId = () =>
  Type.String({
    minLength: 1,
    maxLength: externalIdCharactersMax,
    pattern: '^[^\\u0000-\\u001f\\u007f-\\u009f]+$',
  });

const members = {
  email: Type.Optional(
    Maybe(
      Type.String({
        minLength: 3,
        maxLength: emailCharactersMax,
        pattern: '^[^\\s@\\u0000-\\u001f\\u007f-\\u009f]+@[^\\s@\\u0000-\\u001f\\u007f-\\u009f]+$',
      }),
    ),
  ),
  email_verified: Type.Optional(Maybe(Type.Boolean())),
  name: Type.Optional(
    Maybe(
      Type.String({
        minLength: 1,
        maxLength: nameCharactersMax,
        pattern:
          '^[^\\u0000-\\u001f\\u007f-\\u009f]*[^\\s\\u0000-\\u001f\\u007f-\\u009f][^\\u0000-\\u001f\\u007f-\\u009f]*$',
      }),
    ),
  ),
  disabled: Type.Optional(Type.Boolean()),
};

const schemas: Record<string, TSchema> = {
  Account: Type.Object(
    {
      id: Id(),
      external_id: Maybe(Type.String()),
      email: Maybe(Type.String()),
      email_verified: Maybe(Type.Boolean()),
      name: Maybe(Type.String()),
      disabled: Type.Boolean(),
      created_at: Time(),
      updated_at: Time(),
      _links: links,
    },
    strict,
  ),
  AccountList: listOf('Account'),
  AccountChange: requestSchema(Type.Object(members, strict)),
  ExternalAccount: requestSchema(Type.Object({ external_id: ExternalId(), ...members }, strict)),
  ExternalAccounts: Type.Union([
    reference('ExternalAccount'),
    Type.Array(reference('ExternalAccount'), { minItems: 1, maxItems: accountsMax }),
  ]),
  PutAccounts: Type.Object(
    {
      items: Type.Array(
        Type.Object({ id: Id(), external_id: Type.String(), is_new: Type.Boolean(), _links: links }, strict),
        { maxItems: accountsMax },
      ),
    },
    strict,
  ),
  AccountGrant: Type.Object(
    {
      id: Id(),
      account: Id(),
      client: Type.String(),
      client_name: Type.String(),
      client_uri: Maybe(Type.String()),
      scopes: Type.Array(Type.String()),
      scope_descriptions: Type.Record(Type.String(), Type.String()),
      created_at: Time(),
      last_used_at: Maybe(Time()),
      _links: links,
    },
    strict,
  ),
  AccountGrantList: listOf('AccountGrant'),
  AccountName: requestSchema(
    Type.Union([Id(), Type.Object({ external_id: ExternalId() }, strict)]) as TSchema,
  ),
  AccountLinkCreate: requestSchema(
    Type.Object(
      {
        account: reference('AccountName'),
        return_to: Type.Optional(Maybe(Type.String({ format: 'uri', maxLength: returnToCharactersMax }))),
      },
      strict,
    ),
  ),
  LoginRequest: Type.Object(
    {
      id: Type.String(),
      client: Maybe(
        Type.Object(
          { client_id: Type.String(), client_name: Type.String(), client_uri: Maybe(Type.String()) },
          strict,
        ),
      ),
      scopes: Type.Array(Type.String()),
      scope_descriptions: Type.Record(Type.String(), Type.String()),
      login_hint: Maybe(Type.String()),
      prompt: Maybe(Type.String()),
      acr_values: Type.Array(Type.String()),
      max_age: Maybe(Type.Integer()),
      expires_at: Time(),
      _links: links,
    },
    strict,
  ),
  LoginAcceptance: requestSchema(
    Type.Object(
      {
        account: Type.Object(
          {
            external_id: ExternalId(),
            email: members.email,
            email_verified: members.email_verified,
            name: members.name,
          },
          strict,
        ),
        auth_time: Type.Optional(Type.Integer({ minimum: 0 })),
        amr: Type.Optional(
          Maybe(
            Type.Array(Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: amrCharactersMax }), {
              maxItems: amrMax,
            }),
          ),
        ),
        acr: Type.Optional(
          Maybe(Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: acrCharactersMax })),
        ),
      },
      strict,
    ),
  ),
  LoginRejection: requestSchema(
    Type.Object(
      {
        error: Type.Optional(Named(...loginErrors)),
        error_description: Type.Optional(
          Maybe(
            Type.String({
              pattern: '^[ !#-\\[\\]-~]+$',
              minLength: 1,
              maxLength: descriptionCharactersMax,
            }),
          ),
        ),
      },
      strict,
    ),
  ),
  LoginAnswered: Type.Object({ redirect_to: Type.String({ format: 'uri' }) }, strict),
  AccountLink: Type.Object({ url: Type.String({ format: 'uri' }), expires_at: Time() }, strict),
};

const tag = 'accounts';
const id = pathParameter('id', 'Which account.', Id());
const grantId = pathParameter('id', 'Which grant.', Id());
const loginId = pathParameter('id', 'Which sign-in.', Type.String({ pattern: '^[A-Za-z0-9_-]{43}$' }));
const reads = [readAccountsScope];
const writes = [writeAccountsScope];
const example = { external_id: 'user-4711', email: 'ann@example.com', email_verified: true, name: 'Ann' };
const keep = 'Members that are left out stay as they are; null removes.';
const operatorDecides =
  '`disabled: false` for an account that the operator disabled is refused (403 `disabled-by-operator`), and so is another `disabled` for an administrator (409 `administrator`).';
const noLink =
  'An e-mail address never links accounts: several may have the same, and nobody signs in here by that of an account with an external id.';

const operations: Operation[] = [
  {
    id: 'list_all_accounts',
    method: 'get',
    path: '/accounts',
    tag,
    summary: 'List accounts, or find one by its external id',
    scopes: reads,
    parameters: [
      ...pageParameters,
      queryParameter('external_id', 'Only the one with this external id, compared exactly.', ExternalId()),
    ],
    responses: { 200: { description: 'A page.', schema: 'AccountList', headers: ['Link'] } },
    problems: [],
  },
  {
    id: 'put_accounts',
    method: 'post',
    path: '/accounts',
    tag,
    summary: 'Create or change up to 1,000 accounts',
    description: `Takes one account or an array. All are taken, or none. ${keep} ${operatorDecides} ${noLink}`,
    scopes: writes,
    parameters: [keyParameter],
    body: jsonBody('ExternalAccounts', [example]),
    responses: {
      200: { description: 'In the order given.', schema: 'PutAccounts', headers: ['Idempotency-Replayed'] },
    },
    problems: [409, ...bodyProblems],
  },
  {
    id: 'put_external_account',
    method: 'put',
    path: '/accounts/external/{external_id}',
    tag,
    summary: 'Create or change an account by its external id',
    description: `The external id in the path is percent-encoded. \`.\` and \`..\` cannot stand in a path: use \`POST /accounts\` for these. ${keep} ${operatorDecides} ${noLink}`,
    scopes: writes,
    parameters: [pathParameter('external_id', 'The user id in the application.', ExternalId())],
    body: jsonBody('AccountChange', { email: 'ann@example.com', email_verified: true, name: 'Ann' }),
    responses: {
      200: { description: 'It was known.', schema: 'Account' },
      201: { description: 'It is new.', schema: 'Account', headers: ['Location'] },
    },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'read_any_account',
    method: 'get',
    path: '/accounts/{id}',
    tag,
    summary: 'Read the account of a user',
    scopes: reads,
    parameters: [id],
    responses: { 200: { description: 'As it is now.', schema: 'Account' } },
    problems: [404],
  },
  {
    id: 'change_account',
    method: 'patch',
    path: '/accounts/{id}',
    tag,
    summary: 'Change an account',
    description:
      'Disabling signs it out everywhere and withdraws its grants. An account that was made here keeps its address and is neither disabled nor enabled (409 `local-account`), nor is an administrator (409 `administrator`). An account that the operator disabled is not enabled (403 `disabled-by-operator`).',
    scopes: writes,
    parameters: [id],
    body: mergePatchBody('AccountChange', { disabled: true }),
    responses: { 200: { description: 'As it is now.', schema: 'Account' } },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'delete_account',
    method: 'delete',
    path: '/accounts/{id}',
    tag,
    summary: 'Delete an account',
    description:
      'In one transaction its grants are withdrawn, its subscriptions end, its sessions end, and its resources, address, name and external id are deleted. Apps that it was the only owner of are suspended. No delivery for it starts after that. Events that were published for it leave when they are 30 days old; erase the body of one with `DELETE /events/{id}/body`. The audit log keeps the account id.',
    scopes: writes,
    parameters: [id],
    responses: { 204: { description: 'It is deleted.' } },
    problems: [404, 409, 413, 415],
  },
  {
    id: 'list_account_grants',
    method: 'get',
    path: '/accounts/{id}/grants',
    tag,
    summary: 'List what an account lets apps do, the newest first',
    scopes: reads,
    parameters: [id, ...pageParameters],
    responses: { 200: { description: 'A page.', schema: 'AccountGrantList', headers: ['Link'] } },
    problems: [404],
  },
  {
    id: 'read_account_grant',
    method: 'get',
    path: '/grants/{id}',
    tag,
    summary: 'Read what a user lets an app do',
    scopes: reads,
    parameters: [grantId],
    responses: { 200: { description: 'As it is now.', schema: 'AccountGrant' } },
    problems: [404],
  },
  {
    id: 'withdraw_account_grant',
    method: 'delete',
    path: '/grants/{id}',
    tag,
    summary: 'Withdraw a grant, as its user asked for',
    scopes: writes,
    parameters: [grantId],
    responses: { 204: { description: 'It is withdrawn.' } },
    problems: [404, 413, 415],
  },
  {
    id: 'create_account_link',
    method: 'post',
    path: '/account-links',
    tag,
    summary: 'Make a single-use URL to the account page of a user',
    description:
      'Send the browser of that very user there within 60 seconds. It opens the account page for an hour, and nothing else: it is no sign-in to apps or to the console. For accounts with an external id only.',
    scopes: [loginScope],
    parameters: [],
    body: jsonBody('AccountLinkCreate', {
      account: { external_id: 'user-4711' },
      return_to: 'https://app.example.com/settings',
    }),
    responses: { 201: { description: 'The URL.', schema: 'AccountLink' } },
    problems: [409, ...bodyProblems],
  },
  {
    id: 'read_login_request',
    method: 'get',
    path: '/login-requests/{id}',
    tag,
    summary: 'Read a sign-in that was handed over to the application',
    description:
      'The id is `login_request` in the address of the login page. `client` is null where the user wants their account page.',
    scopes: [loginScope],
    parameters: [loginId],
    responses: { 200: { description: 'What the app asks for.', schema: 'LoginRequest' } },
    problems: [404, 409],
  },
  {
    id: 'accept_login_request',
    method: 'post',
    path: '/login-requests/{id}/accept',
    tag,
    summary: 'Say who the user is',
    description:
      'Redirect the browser of that user to `redirect_to`. It works once, within ten minutes of the beginning, in the browser where the sign-in began. The account is created or changed as by `PUT /accounts/external/{external_id}`. `auth_time` is required where the request has `prompt=login` or `max_age`, and must satisfy it. Without it the time of the sign-in is not known: id_tokens do not have `auth_time`, and a later `max_age` asks for a new sign-in.',
    scopes: [loginScope],
    parameters: [loginId],
    body: jsonBody('LoginAcceptance', {
      account: { external_id: 'user-4711', email: 'ann@example.com', name: 'Ann' },
      auth_time: 1_760_000_000,
      amr: ['pwd'],
    }),
    responses: { 200: { description: 'Where the browser goes.', schema: 'LoginAnswered' } },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'reject_login_request',
    method: 'post',
    path: '/login-requests/{id}/reject',
    tag,
    summary: 'Refuse a sign-in: the app is told the error',
    scopes: [loginScope],
    parameters: [loginId],
    body: jsonBody(
      'LoginRejection',
      { error: 'access_denied', error_description: 'The user cancelled' },
      false,
    ),
    responses: { 200: { description: 'Where the browser goes.', schema: 'LoginAnswered' } },
    problems: [404, 409, ...bodyProblems],
  },
];

export function describeAccountApi(): ReferencePart {
  return {
    operations,
    schemas,
    tags: [
      {
        name: tag,
        description:
          'Accounts of an application that has its own users. For machine clients of the operator.',
      },
    ],
  };
}
