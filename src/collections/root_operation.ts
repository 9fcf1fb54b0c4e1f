/** Describes `GET /api` for the reference. */

import Type from 'typebox';
import { links, token } from '../http/describe.ts';
import type { Operation } from '../http/operation.ts';
import { named, strict } from '../http/schema.ts';
import { exampleIds } from './example.ts';

const root = named(
  'Root',
  Type.Object(
    {
      // A UUID, or a pairwise subject identifier.
      account: Type.Union([Type.Object({ id: Type.String() }), Type.Null()]),
      client: Type.Object({ id: Type.String() }),
      scopes: Type.Array(Type.String()),
      quotas: Type.Optional(
        Type.Record(
          Type.String(),
          Type.Object({ limit: Type.Integer({ minimum: 0 }), left: Type.Integer({ minimum: 0 }) }),
          {
            description:
              'For tokens with `read:webhooks` or `write:webhooks`: the limit and the rest of each quota. Quotas limit the subscriptions of the grant (or of the user or app itself), of the account and of the app, the deliveries per event of the account, and the bytes of responses that the log stores per day. Creating a subscription above a limit gets 422 with a code such as `quota-account-subscriptions`.',
          },
        ),
      ),
      _links: links,
    },
    strict,
  ),
);

export const rootOperation: Operation = {
  id: 'read_api',
  method: 'get',
  path: '/api',
  tag: 'api',
  summary: 'Read who the token acts for',
  description:
    'Returns the account, the client, the scopes of the token, the rest of its quotas, and links to what it can use.',
  admission: token(),
  responses: {
    200: {
      description:
        'The account, the client and the scopes. The account is null if the client acts for itself, and has a pairwise id if the client uses pairwise subjects.',
      schema: root,
      example: {
        account: { id: exampleIds.author },
        client: { id: 'reader' },
        scopes: ['read:posts', 'read:webhooks'],
        quotas: { account_subscriptions: { limit: 2000, left: 1990 } },
        _links: { self: { href: '/api' }, articles: { href: '/articles' } },
      },
    },
  },
};
