/** Deliveries to send: bodies of about 1 KB, of the kind `push`, distributed over subscriptions in turn. */

import { randomBytes, randomUUID } from 'node:crypto';
import type { Delivery } from './signed_post.ts';

/** Returns about 1 KB of JSON. @param number makes each body unique */
function eventBody(number: number): Record<string, unknown> {
  const hex = number.toString(16).padStart(40, '0');
  const commits = ['Correct the total of an empty invoice', 'Say which field was wrong'].map((message) => ({
    id: hex,
    message,
    timestamp: '2026-01-31T12:00:00Z',
    author: { name: 'Ada Example', email: 'ada@example.com', username: 'ada' },
    url: `https://git.example.com/ada/invoices/commit/${hex}`,
    added: ['src/invoice/total.ts'],
    removed: [],
    modified: ['src/invoice/line.ts', 'test/invoice.test.ts'],
  }));
  return {
    ref: 'refs/heads/main',
    commits,
    repository: {
      id: 417_221,
      name: 'invoices',
      full_name: 'ada/invoices',
      private: false,
      html_url: 'https://git.example.com/ada/invoices',
      default_branch: 'main',
    },
  };
}

/** @param subscriptions the number of subscriptions; delivery n goes to subscription n modulo that number */
export function makeDeliveries(count: number, subscriptions: number): Delivery[] {
  const secrets = Array.from({ length: subscriptions }, () => `whsec_${randomBytes(32).toString('base64')}`);
  return Array.from({ length: count }, (_, number) => ({
    id: randomUUID(),
    path: `/fast/${number % subscriptions}`,
    sequence: Math.floor(number / subscriptions) + 1,
    secret: secrets[number % subscriptions] as string,
    body: JSON.stringify(eventBody(number)),
  }));
}
