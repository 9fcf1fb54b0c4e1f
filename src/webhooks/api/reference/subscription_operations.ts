/** Reference: operations on subscriptions, including those of apps. */

import Type from 'typebox';
import { mergePatchType } from '../../../http/api.ts';
import { keyParameter, pageParameters } from '../../../http/describe.ts';
import type { Operation, Parameter } from '../../../http/operation.ts';
import { bodyProblems, createdHeaders, idParameter, jsonBody, read, Time, write } from './parts.ts';

const exampleSubscription = {
  url: 'https://app.example/hooks',
  kinds: ['article.*'],
  signature: 'timestamp',
};

export const subscriptionOperations: Operation[] = [
  {
    id: 'list_subscriptions',
    method: 'get',
    path: '/subscriptions',
    tag: 'subscriptions',
    summary: 'List subscriptions',
    description:
      'Lists the subscriptions of the token’s grant or client. The console’s token lists those of the user and of apps that act for the user.',
    scopes: read,
    parameters: pageParameters,
    responses: { 200: { description: 'A page.', schema: 'SubscriptionList', headers: ['Link'] } },
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
    responses: {
      201: {
        description: 'The subscription with its secret.',
        schema: 'SubscriptionMade',
        headers: createdHeaders,
      },
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
    responses: { 200: { description: 'The subscription.', schema: 'Subscription' } },
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
    responses: { 200: { description: 'The changed subscription.', schema: 'Subscription' } },
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
    responses: { 204: { description: 'The subscription has ended.' } },
    problems: [404, 413, 415],
  },
  {
    id: 'read_subscription_secret',
    method: 'get',
    path: '/subscriptions/{id}/secret',
    tag: 'subscriptions',
    summary: 'Read the signing secret',
    scopes: write,
    parameters: [idParameter('subscription')],
    responses: {
      200: {
        description: 'The secret, and the previous one while it still signs.',
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
    description: 'Creates a new secret. The old one also signs for `overlap` seconds.',
    scopes: write,
    parameters: [idParameter('subscription'), keyParameter],
    body: jsonBody('SecretRotation', { overlap: 86_400 }, false),
    responses: {
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
    description: 'Sends a `ping`, or the example of a kind, to this subscription only.',
    scopes: write,
    parameters: [idParameter('subscription'), keyParameter],
    body: jsonBody('TestStart', { kind: 'push' }, false),
    responses: {
      202: { description: 'The delivery is due.', schema: 'TestDelivery', headers: createdHeaders },
    },
    problems: [404, 409, ...bodyProblems],
  },
];

const appParameter: Parameter = {
  name: 'id',
  in: 'path',
  description: 'The app’s `client_id`.',
  schema: Type.String({ minLength: 1, maxLength: 2_048 }),
  required: true,
};

export const appSubscriptionOperations: Operation[] = [
  {
    id: 'list_app_subscriptions',
    method: 'get',
    path: '/apps/{id}/subscriptions',
    tag: 'subscriptions',
    summary: 'List an app’s own subscriptions, for its members',
    scopes: ['read:apps', ...read],
    parameters: [appParameter, ...pageParameters],
    responses: { 200: { description: 'A page.', schema: 'SubscriptionList', headers: ['Link'] } },
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
    responses: {
      201: { description: 'With its secret.', schema: 'SubscriptionMade', headers: createdHeaders },
    },
    problems: [404, 409, ...bodyProblems],
  },
];

const rangeParameters: Parameter[] = [
  { name: 'since', in: 'query', description: 'Default: a day before `until`.', schema: Time() },
  { name: 'until', in: 'query', description: 'Default: now.', schema: Time() },
];
const healthDescription =
  'Outcomes are counted as they are written, in buckets of 5 minutes for the last 2 days and of one hour for 31 days. Percentiles are upper bounds of histogram buckets.';

export const healthOperations: Operation[] = [
  {
    id: 'read_subscription_health',
    method: 'get',
    path: '/subscriptions/{id}/health',
    tag: 'subscriptions',
    summary: 'Read a subscription’s health',
    description: healthDescription,
    scopes: read,
    parameters: [idParameter('subscription'), ...rangeParameters],
    responses: { 200: { description: 'Counts, latencies, errors, backlog.', schema: 'Health' } },
    problems: [404],
  },
  {
    id: 'read_health',
    method: 'get',
    path: '/deliveries/health',
    tag: 'subscriptions',
    summary: 'Read the health of all listed subscriptions',
    description: `${healthDescription} At most 1,000 subscriptions are included, oldest first.`,
    scopes: read,
    parameters: rangeParameters,
    responses: { 200: { description: 'Counts, latencies, errors, backlog.', schema: 'Health' } },
    problems: [],
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
        description: 'The app’s `client_id`.',
        schema: Type.String({ minLength: 1, maxLength: 2_048 }),
        required: true,
      },
      ...rangeParameters,
    ],
    responses: { 200: { description: 'Counts, latencies, errors, backlog.', schema: 'Health' } },
    problems: [404],
  },
];
