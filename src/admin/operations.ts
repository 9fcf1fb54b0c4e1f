/** The operations of the administration as the reference describes them. */

import Type, { type TSchema } from 'typebox';
import { appId, appOrigins, appStates, clientMembers } from '../apps/api/operations.ts';
import {
  bodyProblems,
  Id,
  jsonBody,
  links,
  listOf,
  Maybe,
  Named,
  pageParameters,
  pathParameter,
  queryParameter,
  strict,
  Time,
} from '../http/describe.ts';
import type { Operation, Parameter, ReferencePart } from '../http/operation.ts';
import { healthMembers, subscriptionMembers } from '../webhooks/api/reference/schemas.ts';

const count = Type.Object({ count: Type.Integer({ minimum: 0 }), is_estimate: Type.Boolean() }, strict);

const reason = Type.Optional(Maybe(Type.String({ maxLength: 500 })));

/** `body_json` of a single one is the body as PostgreSQL wrote it. */
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

const schemas: Record<string, TSchema> = {
  AdminAccount: Type.Object(
    {
      id: Id(),
      external_id: Maybe(Type.String()),
      email: Maybe(Type.String()),
      name: Type.String(),
      is_admin: Type.Boolean(),
      state: Named('active', 'disabled'),
      created_at: Time(),
      disabled_at: Maybe(Time()),
      _links: links,
    },
    strict,
  ),
  AdminAccountList: listOf('AdminAccount'),
  AdminApp: Type.Object({ ...clientMembers, _links: links }, strict),
  AdminAppList: listOf('AdminApp'),
  AdminReason: Type.Object({ reason }, strict),
  AdminVerification: Type.Object({ reason, updated_at: Type.Optional(Maybe(Time())) }, strict),
  AdminGrant: Type.Object(
    {
      id: Id(),
      account: Id(),
      client: Type.String(),
      scopes: Type.Array(Type.String()),
      created_at: Time(),
      last_used_at: Maybe(Time()),
      _links: links,
    },
    strict,
  ),
  AdminGrantList: listOf('AdminGrant'),
  AdminSubscription: Type.Object({ ...subscriptionMembers, account: Maybe(Id()) }, strict),
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
  AuditEntry: Type.Object(
    {
      id: Type.String(),
      at: Time(),
      kind: Type.String(),
      actor: Maybe(Type.String()),
      account: Maybe(Id()),
      email: Maybe(Type.String()),
      client: Maybe(Type.String()),
      grant: Maybe(Id()),
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
            state: Named('next', 'current', 'previous'),
            created_at: Time(),
            signs_from: Time(),
            expires_at: Maybe(Time()),
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
            signs_until: Maybe(Time()),
            expires_at: Maybe(Time()),
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
            state: Named('alive', 'gone'),
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
            section: Named('environment', 'platform'),
          },
          strict,
        ),
      ),
      _links: links,
    },
    strict,
  ),
};

const scopes = ['admin'];
const id = (item: string) => pathParameter('id', `Which ${item}.`, Id());
const account = queryParameter('account', 'Only those of this account.', Id());
const client = queryParameter(
  'client',
  'Only those of this app: its `client_id`.',
  Type.String({ minLength: 1, maxLength: 2_048 }),
);
const ofRange = (what: string) => [
  queryParameter('since', `Only ${what} at this time or later.`, Time()),
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
      'A page looks through 1,000 rows at most: with filters it may be shorter than `limit`, or empty, and still have `next`.',
    scopes,
    parameters: [...pageParameters, ...parameters],
    responses: { 200: { description: 'A page.', schema, headers: ['Link'] } },
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
    responses: { 200: { description: 'As it is now.', schema } },
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
  const example = body === 'EmptyBody' ? {} : { reason: 'Asked for by its developer' };
  return {
    id: name,
    method: 'post',
    path,
    tag: 'administration',
    summary,
    scopes,
    parameters: [which],
    body: jsonBody(body, example, false),
    responses: { 200: { description: 'As it is now.', schema } },
    problems: [404, 409, ...bodyProblems],
  };
}

const operations: Operation[] = [
  list('list_accounts', '/admin/accounts', 'List accounts by e-mail address', 'AdminAccountList', [
    queryParameter(
      'email',
      'Only those whose address begins so.',
      Type.String({ minLength: 1, maxLength: 254 }),
    ),
    queryParameter('state', 'Only those in this state.', Named('active', 'disabled')),
  ]),
  read('read_account', '/admin/accounts/{id}', 'Read an account', 'AdminAccount', [id('account')]),
  act(
    'disable_account',
    '/admin/accounts/{id}/disable',
    'Disable an account: it is signed out, and its grants are withdrawn',
    'AdminAccount',
    id('account'),
    'EmptyBody',
  ),
  act(
    'enable_account',
    '/admin/accounts/{id}/enable',
    'Enable an account; what was withdrawn stays so',
    'AdminAccount',
    id('account'),
    'EmptyBody',
  ),
  list('list_all_apps', '/admin/apps', 'List all apps, the newest first, or by name', 'AdminAppList', [
    queryParameter('state', 'Only those in this state.', Named(...appStates)),
    queryParameter('origin', 'Only those that came in so.', Named(...appOrigins)),
    queryParameter('name', 'Only those whose name begins so.', Type.String({ minLength: 1, maxLength: 100 })),
  ]),
  read('read_any_app', '/admin/apps/{id}', 'Read any app', 'AdminApp', [appId]),
  {
    ...act('verify_app', '/admin/apps/{id}/verify', 'Verify an app', 'AdminApp', appId, 'AdminVerification'),
    description:
      'With `updated_at` as it was read, an app that has been changed since is not verified: 412. Send it: what is verified is then what was looked at.',
    problems: [404, 409, 412, ...bodyProblems],
  },
  act(
    'unverify_app',
    '/admin/apps/{id}/unverify',
    'Take a verification back',
    'AdminApp',
    appId,
    'AdminReason',
  ),
  act(
    'suspend_app',
    '/admin/apps/{id}/suspend',
    'Suspend an app: no tokens, no deliveries, until it is reinstated',
    'AdminApp',
    appId,
    'AdminReason',
  ),
  act('reinstate_app', '/admin/apps/{id}/reinstate', 'End a suspension', 'AdminApp', appId, 'AdminReason'),
  list('list_all_grants', '/admin/grants', 'List grants that are not withdrawn', 'AdminGrantList', [
    account,
    client,
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
    responses: { 204: { description: 'It is withdrawn.' } },
    problems: [404, 413, 415],
  },
  list('list_all_subscriptions', '/admin/subscriptions', 'List all subscriptions', 'AdminSubscriptionList', [
    account,
    client,
    queryParameter('state', 'Only those in this state.', Named('active', 'disabled')),
    queryParameter('failing', 'Only those that will be disabled, the next one first.', Named('true')),
  ]),
  read('read_any_subscription', '/admin/subscriptions/{id}', 'Read any subscription', 'AdminSubscription', [
    id('subscription'),
  ]),
  act(
    'disable_subscription',
    '/admin/subscriptions/{id}/disable',
    'Disable a subscription; its owner may enable it again',
    'AdminSubscription',
    id('subscription'),
    'EmptyBody',
  ),
  {
    ...list(
      'list_rejected_events',
      '/admin/rejected-events',
      'List rejected events, the newest first',
      'RejectedEventList',
      [],
    ),
    description: 'Events that were published by SQL and refused when a server took them in.',
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
      'With `kind`, `account` or `body` in the place of what was published. An event that is refused again stays rejected: 422.',
    scopes,
    parameters: [id('rejected event')],
    body: jsonBody(
      'RejectedEventCorrection',
      { body: { invoice: { id: 'inv_1024', amount: 4_900, currency: 'EUR' } } },
      false,
    ),
    responses: { 202: { description: 'It is an event.', schema: 'RetriedEvent' } },
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
    responses: { 204: { description: 'It is gone.' } },
    problems: [404, 413, 415],
  },
  list('list_audit_entries', '/admin/audit', 'List entries of the audit log', 'AuditEntryList', [
    queryParameter('kind', 'Only kinds that begin so.', Type.String({ minLength: 1, maxLength: 100 })),
    account,
    client,
    ...ofRange('entries written'),
  ]),
  read('read_keys', '/admin/keys', 'Read which keys sign', 'AdminKeys', []),
  read('read_nodes', '/admin/nodes', 'Read which nodes send', 'AdminNodes', []),
  read(
    'read_stats',
    '/admin/stats',
    'Read the health of all subscriptions, and sizes',
    'AdminStats',
    ofRange('outcomes'),
  ),
  read(
    'read_settings',
    '/admin/settings',
    'Read the settings in force, without secrets',
    'AdminSettings',
    [],
  ),
];

export function describeAdministration(): ReferencePart {
  return {
    operations,
    schemas,
    tags: [{ name: 'administration', description: 'The server, for its administrators.' }],
  };
}
