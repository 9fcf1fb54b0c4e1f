/** The operations of the accounts API, for the OpenAPI document. */

import Type from 'typebox';
import { loginScope, readAccountsScope, writeAccountsScope } from '../grants/scopes.ts';
import {
  bodyProblems,
  Id,
  jsonBody,
  keyParameter,
  mergePatchBody,
  pageParameters,
  pathParameter,
  queryParameter,
} from '../http/describe.ts';
import type { Operation, ReferencePart } from '../http/operation.ts';
import { accountSchemas, ExternalId } from './operation_schemas.ts';

const tag = 'accounts';
const id = pathParameter('id', 'The id of the account.', Id());
const grantId = pathParameter('id', 'The id of the grant.', Id());
const loginId = pathParameter(
  'id',
  'The id of the login request.',
  Type.String({ pattern: '^[A-Za-z0-9_-]{43}$' }),
);
const firstParty = queryParameter(
  'first_party',
  'Only grants of the server’s own apps, such as the console (`true`), or of all others (`false`, the default).',
  Type.Boolean(),
);
const reads = [readAccountsScope];
const writes = [writeAccountsScope];
const example = { external_id: 'user-4711', email: 'ann@example.com', email_verified: true, name: 'Ann' };
const keep = 'Missing properties stay unchanged; null removes a value.';
const operatorDecides =
  '`disabled: false` is rejected for an account that the operator disabled (403 `disabled-by-operator`), and a change of the address or of `disabled` for an administrator (409 `administrator`).';
const control = 'Refused for local accounts (409 `local-account`) and administrators (409 `administrator`).';
const noLink =
  'Email addresses do not link accounts. Several accounts may have the same address, and the address of an external account cannot be used to sign in at Nuncio.';

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
      queryParameter(
        'external_id',
        'Only the account with this external id. Must match exactly.',
        ExternalId(),
      ),
    ],
    responses: { 200: { description: 'A page of accounts.', schema: 'AccountList', headers: ['Link'] } },
    problems: [],
  },
  {
    id: 'put_accounts',
    method: 'post',
    path: '/accounts',
    tag,
    summary: 'Create or change up to 1,000 accounts',
    description: `The body is one account or an array. Either all changes are made or none. ${keep} ${operatorDecides} ${noLink}`,
    scopes: writes,
    parameters: [keyParameter],
    body: jsonBody('ExternalAccounts', [example]),
    responses: {
      200: {
        description: 'The accounts in the order of the request.',
        schema: 'PutAccounts',
        headers: ['Idempotency-Replayed'],
      },
    },
    problems: [409, ...bodyProblems],
  },
  {
    id: 'put_external_account',
    method: 'put',
    path: '/accounts/external/{external_id}',
    tag,
    summary: 'Create or change an account by its external id',
    description: `Percent-encode the external id in the path. A path cannot contain the external ids \`.\` and \`..\`: use \`POST /accounts\` for these. ${keep} ${operatorDecides} ${noLink}`,
    scopes: writes,
    parameters: [pathParameter('external_id', 'The user id in the application.', ExternalId())],
    body: jsonBody('AccountChange', { email: 'ann@example.com', email_verified: true, name: 'Ann' }),
    responses: {
      200: { description: 'The account existed.', schema: 'Account' },
      201: { description: 'The account was created.', schema: 'Account', headers: ['Location'] },
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
    responses: { 200: { description: 'The account.', schema: 'Account' } },
    problems: [404],
  },
  {
    id: 'change_account',
    method: 'patch',
    path: '/accounts/{id}',
    tag,
    summary: 'Change an account',
    description:
      'Disabling an account ends its sessions and withdraws its grants. The address and the state of a local account cannot be changed (409 `local-account`), nor those of an administrator (409 `administrator`). An account that the operator disabled cannot be enabled (403 `disabled-by-operator`).',
    scopes: writes,
    parameters: [id],
    body: mergePatchBody('AccountChange', { disabled: true }),
    responses: { 200: { description: 'The changed account.', schema: 'Account' } },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'delete_account',
    method: 'delete',
    path: '/accounts/{id}',
    tag,
    summary: 'Delete an account',
    description:
      'Refused for local accounts (409 `local-account`) and administrators (409 `administrator`). One transaction withdraws its grants, ends its subscriptions and sessions, and deletes its resources, address, name and external id. Apps without another owner are suspended. No delivery for the account starts after that. Events that were published for it are kept until they are 30 days old; erase the body of one with `DELETE /events/{id}/body`. The audit log keeps the account id.',
    scopes: writes,
    parameters: [id],
    responses: { 204: { description: 'Deleted.' } },
    problems: [404, 409, 413, 415],
  },
  {
    id: 'list_account_grants',
    method: 'get',
    path: '/accounts/{id}/grants',
    tag,
    summary: 'List the grants of an account, newest first',
    scopes: reads,
    parameters: [id, ...pageParameters, firstParty],
    responses: { 200: { description: 'A page of grants.', schema: 'AccountGrantList', headers: ['Link'] } },
    problems: [404],
  },
  {
    id: 'read_account_grant',
    method: 'get',
    path: '/grants/{id}',
    tag,
    summary: 'Read a grant of a user',
    scopes: reads,
    parameters: [grantId],
    responses: { 200: { description: 'The grant.', schema: 'AccountGrant' } },
    problems: [404],
  },
  {
    id: 'withdraw_account_grant',
    method: 'delete',
    path: '/grants/{id}',
    tag,
    summary: 'Withdraw a grant on behalf of its user',
    description: control,
    scopes: writes,
    parameters: [grantId],
    responses: { 204: { description: 'Withdrawn.' } },
    problems: [404, 409, 413, 415],
  },
  {
    id: 'create_account_link',
    method: 'post',
    path: '/account-links',
    tag,
    summary: 'Create a single-use URL to the account page of a user',
    description:
      'Redirect the browser of that user to the URL within 60 seconds. It gives access to the account page for an hour. It does not sign the user in to apps or to the console. Refused for local accounts (409 `local-account`) and administrators (409 `administrator`).',
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
    summary: 'Read a login request',
    description:
      'The id is the parameter `login_request` of the login page. `client` is null if the user opened the account page.',
    scopes: [loginScope],
    parameters: [loginId],
    responses: { 200: { description: 'The login request.', schema: 'LoginRequest' } },
    problems: [404, 409],
  },
  {
    id: 'accept_login_request',
    method: 'post',
    path: '/login-requests/{id}/accept',
    tag,
    summary: 'Accept a login request: state who the user is',
    description:
      'Redirect the browser of that user to `redirect_to`. The URL works once, within ten minutes of the start, in the browser that started the sign-in. The account is created or changed as by `PUT /accounts/external/{external_id}`. Administrators are refused (409 `administrator`), unless the operator set `accounts.login.administrators`. `auth_time` is required if the request has `prompt=login` or `max_age`, and must satisfy them. Without it, id_tokens do not contain `auth_time`, and a later request with `max_age` requires a new sign-in.',
    scopes: [loginScope],
    parameters: [loginId],
    body: jsonBody('LoginAcceptance', {
      account: { external_id: 'user-4711', email: 'ann@example.com', name: 'Ann' },
      auth_time: 1_760_000_000,
      amr: ['pwd'],
    }),
    responses: {
      200: { description: 'The URL to redirect the browser to, and the account.', schema: 'LoginAccepted' },
    },
    problems: [404, 409, ...bodyProblems],
  },
  {
    id: 'reject_login_request',
    method: 'post',
    path: '/login-requests/{id}/reject',
    tag,
    summary: 'Reject a login request: the app gets the error',
    scopes: [loginScope],
    parameters: [loginId],
    body: jsonBody(
      'LoginRejection',
      { error: 'access_denied', error_description: 'The user cancelled' },
      false,
    ),
    responses: { 200: { description: 'The URL to redirect the browser to.', schema: 'LoginAnswered' } },
    problems: [404, 409, ...bodyProblems],
  },
];

export function describeAccountApi(): ReferencePart {
  return {
    operations,
    schemas: accountSchemas,
    tags: [
      {
        name: tag,
        description:
          'Accounts of an application that has its own users. For machine clients of the operator only.',
      },
    ],
  };
}
