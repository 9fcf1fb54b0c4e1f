/** The operations of the administration API, for the OpenAPI document. */

import Type from 'typebox';
import { appId, appOrigins, appStates } from '../apps/api/operations.ts';
import {
  bodyProblems,
  Id,
  jsonBody,
  pageParameters,
  pathParameter,
  queryParameter,
  StringEnum,
  Time,
} from '../http/describe.ts';
import type { Operation, Parameter, ReferencePart } from '../http/operation.ts';
import { adminSchemas, Position } from './operation_schemas.ts';

const scopes = ['admin'];
const id = (item: string) => pathParameter('id', `The id of the ${item}.`, Id());
const account = queryParameter('account', 'Only entries of this account.', Id());
const client = queryParameter(
  'client',
  'Only entries of this app, by its `client_id`.',
  Type.String({ minLength: 1, maxLength: 2_048 }),
);
const firstParty = queryParameter(
  'first_party',
  'Only grants of the server’s own apps, such as the console (`true`), or of all others (`false`). Default: `false`, or what `client` names.',
  Type.Boolean(),
);
const ofRange = (what: string) => [
  queryParameter('since', `Only ${what} at or after this time.`, Time()),
  queryParameter('until', `Only ${what} before this time.`, Time()),
];

function list(
  name: string,
  path: string,
  summary: string,
  schema: string,
  parameters: Parameter[],
): Operation {
  return {
    id: name,
    method: 'get',
    path,
    tag: 'administration',
    summary,
    description:
      'One page scans at most 1,000 rows. With filters it may have fewer items than `limit`, or none, and still have `next`.',
    scopes,
    parameters: [...pageParameters, ...parameters],
    responses: { 200: { description: 'A page of results.', schema, headers: ['Link'] } },
    problems: [],
  };
}

function read(
  name: string,
  path: string,
  summary: string,
  schema: string,
  parameters: Parameter[],
): Operation {
  return {
    id: name,
    method: 'get',
    path,
    tag: 'administration',
    summary,
    scopes,
    parameters,
    responses: { 200: { description: 'The current state.', schema } },
    problems: path.includes('{') ? [404] : [],
  };
}

function act(
  name: string,
  path: string,
  summary: string,
  schema: string,
  which: Parameter,
  body: 'AdminReason' | 'AdminVerification' | 'EmptyBody',
): Operation {
  const example = {
    ...(body === 'EmptyBody' ? {} : { reason: 'Requested by the developer' }),
    ...(body === 'AdminVerification' ? { updated_at: '2026-05-04T12:00:00.000Z' } : {}),
  };
  return {
    id: name,
    method: 'post',
    path,
    tag: 'administration',
    summary,
    scopes,
    parameters: [which],
    body: jsonBody(body, example, body === 'AdminVerification'),
    responses: { 200: { description: 'The new state.', schema } },
    problems: [404, 409, ...bodyProblems],
  };
}

const operations: Operation[] = [
  list('list_accounts', '/admin/accounts', 'List accounts by e-mail address', 'AdminAccountList', [
    queryParameter(
      'email',
      'Only accounts whose address begins with this text.',
      Type.String({ minLength: 1, maxLength: 254 }),
    ),
    queryParameter('state', 'Only accounts in this state.', StringEnum('active', 'disabled')),
  ]),
  read('read_account', '/admin/accounts/{id}', 'Read an account', 'AdminAccount', [id('account')]),
  act(
    'disable_account',
    '/admin/accounts/{id}/disable',
    'Disable an account: ends its sessions and withdraws its grants',
    'AdminAccount',
    id('account'),
    'EmptyBody',
  ),
  act(
    'enable_account',
    '/admin/accounts/{id}/enable',
    'Enable an account; its grants stay withdrawn',
    'AdminAccount',
    id('account'),
    'EmptyBody',
  ),
  list('list_all_apps', '/admin/apps', 'List all apps, newest first or by name', 'AdminAppList', [
    queryParameter('state', 'Only apps in this state.', StringEnum(...appStates)),
    queryParameter('origin', 'Only apps of this origin.', StringEnum(...appOrigins)),
    queryParameter(
      'name',
      'Only apps whose name begins with this text.',
      Type.String({ minLength: 1, maxLength: 100 }),
    ),
  ]),
  read('read_any_app', '/admin/apps/{id}', 'Read any app', 'AdminApp', [appId]),
  {
    ...act('verify_app', '/admin/apps/{id}/verify', 'Verify an app', 'AdminApp', appId, 'AdminVerification'),
    description:
      '`updated_at` names the version that you reviewed. If the app has changed since, it is not verified (412). Any later change of what you reviewed ends the verification.',
    problems: [404, 409, 412, ...bodyProblems],
  },
  act(
    'unverify_app',
    '/admin/apps/{id}/unverify',
    'Remove the verification of an app',
    'AdminApp',
    appId,
    'AdminReason',
  ),
  act(
    'suspend_app',
    '/admin/apps/{id}/suspend',
    'Suspend an app: it gets no tokens and no deliveries until it is reinstated',
    'AdminApp',
    appId,
    'AdminReason',
  ),
  act(
    'reinstate_app',
    '/admin/apps/{id}/reinstate',
    'Reinstate a suspended app',
    'AdminApp',
    appId,
    'AdminReason',
  ),
  list('list_all_grants', '/admin/grants', 'List active grants', 'AdminGrantList', [
    account,
    client,
    firstParty,
  ]),
  read('read_any_grant', '/admin/grants/{id}', 'Read a grant', 'AdminGrant', [id('grant')]),
  {
    id: 'withdraw_grant',
    method: 'delete',
    path: '/admin/grants/{id}',
    tag: 'administration',
    summary: 'Withdraw a grant',
    scopes,
    parameters: [id('grant')],
    responses: { 204: { description: 'Withdrawn.' } },
    problems: [404, 413, 415],
  },
  list('list_all_subscriptions', '/admin/subscriptions', 'List all subscriptions', 'AdminSubscriptionList', [
    account,
    client,
    queryParameter('state', 'Only subscriptions in this state.', StringEnum('active', 'disabled')),
    queryParameter(
      'failing',
      'Only subscriptions that will be disabled unless a delivery succeeds, soonest first.',
      StringEnum('true'),
    ),
  ]),
  read('read_any_subscription', '/admin/subscriptions/{id}', 'Read any subscription', 'AdminSubscription', [
    id('subscription'),
  ]),
  act(
    'disable_subscription',
    '/admin/subscriptions/{id}/disable',
    'Disable a subscription; its owner can enable it again',
    'AdminSubscription',
    id('subscription'),
    'EmptyBody',
  ),
  {
    ...list(
      'list_rejected_events',
      '/admin/rejected-events',
      'List rejected events, newest first',
      'RejectedEventList',
      [],
    ),
    description: 'Events that were published by SQL and failed validation.',
  },
  read(
    'read_rejected_event',
    '/admin/rejected-events/{id}',
    'Read a rejected event with its body',
    'RejectedEventWithBody',
    [id('rejected event')],
  ),
  {
    id: 'retry_rejected_event',
    method: 'post',
    path: '/admin/rejected-events/{id}/retry',
    tag: 'administration',
    summary: 'Retry a rejected event',
    description:
      '`kind`, `account` and `body` replace the published values. If the event fails validation again, it stays rejected and the response is 422.',
    scopes,
    parameters: [id('rejected event')],
    body: jsonBody(
      'RejectedEventCorrection',
      { body: { invoice: { id: 'inv_1024', amount: 4_900, currency: 'EUR' } } },
      false,
    ),
    responses: { 202: { description: 'Accepted as an event.', schema: 'RetriedEvent' } },
    problems: [404, ...bodyProblems],
  },
  {
    id: 'discard_rejected_event',
    method: 'delete',
    path: '/admin/rejected-events/{id}',
    tag: 'administration',
    summary: 'Discard a rejected event',
    scopes,
    parameters: [id('rejected event')],
    responses: { 204: { description: 'Discarded.' } },
    problems: [404, 413, 415],
  },
  {
    ...list(
      'list_parked_events',
      '/admin/parked-events',
      'List parked events, oldest first',
      'ParkedEventList',
      [],
    ),
    description:
      'Events that fan-out could not turn into deliveries, with the reason. Their account’s later events continue.',
  },
  {
    id: 'retry_parked_event',
    method: 'post',
    path: '/admin/parked-events/{position}/retry',
    tag: 'administration',
    summary: 'Retry a parked event',
    description:
      'Returns the event to the outbox, behind the events that its account has waiting. If it fails again, it is parked again.',
    scopes,
    parameters: [pathParameter('position', 'The position of the parked event.', Position())],
    responses: { 202: { description: 'Returned to the outbox.', schema: 'RetriedParkedEvent' } },
    problems: [404, 413, 415],
  },
  list('list_audit_entries', '/admin/audit', 'List entries of the audit log', 'AuditEntryList', [
    queryParameter(
      'kind',
      'Only kinds that begin with this text.',
      Type.String({ minLength: 1, maxLength: 100 }),
    ),
    account,
    client,
    ...ofRange('entries written'),
  ]),
  read('read_keys', '/admin/keys', 'Read the signing keys and delivery keys', 'AdminKeys', []),
  read('read_nodes', '/admin/nodes', 'Read the nodes', 'AdminNodes', []),
  read(
    'read_stats',
    '/admin/stats',
    'Read the health of all subscriptions, and row counts',
    'AdminStats',
    ofRange('outcomes'),
  ),
  read(
    'read_settings',
    '/admin/settings',
    'Read the effective settings, without secrets',
    'AdminSettings',
    [],
  ),
];

export function describeAdministration(): ReferencePart {
  return {
    operations,
    schemas: adminSchemas,
    tags: [{ name: 'administration', description: 'Administration of the server.' }],
  };
}
