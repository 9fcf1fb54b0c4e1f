/**
 * Verifies deliveries with unmodified libraries: each signature format with the library of its platform.
 */

import { verify as verifyGithub } from '@octokit/webhooks-methods';
import { Webhook } from 'standardwebhooks';
import Stripe from 'stripe';

export type Shape = 'timestamp' | 'sha256' | 'standard';
export const shapes: readonly Shape[] = ['timestamp', 'sha256', 'standard'];

/** The library that verifies each signature format, shown on the page. */
export const libraries: Readonly<Record<Shape, string>> = {
  timestamp: 'stripe',
  sha256: '@octokit/webhooks-methods',
  standard: 'standardwebhooks',
};

export type Headers = Record<string, string | string[] | undefined>;

/** Whether the delivery is signed with the secret. */
export async function isAuthentic(
  shape: Shape,
  body: string,
  headers: Headers,
  secret: string,
): Promise<boolean> {
  try {
    return await checks[shape](body, headers, secret);
  } catch {
    return false;
  }
}

const checks: Record<Shape, (body: string, headers: Headers, secret: string) => boolean | Promise<boolean>> =
  {
    timestamp(body, headers, secret) {
      // The key is for Stripe's API, which the demo does not call.
      const stripe = new Stripe('sk_test_unused');
      stripe.webhooks.constructEvent(body, String(headers['nuncio-signature']), secret);
      return true;
    },
    sha256(body, headers, secret) {
      return verifyGithub(secret, body, String(headers['nuncio-signature']));
    },
    standard(body, headers, secret) {
      new Webhook(secret).verify(body, headers as Record<string, string>);
      return true;
    },
  };
