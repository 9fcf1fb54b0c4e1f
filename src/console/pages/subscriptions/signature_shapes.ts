/** Titles and descriptions of signature formats. */

import type { Choice } from '../../ui/fields.tsx';

export const signatureShapes: readonly Choice[] = [
  {
    id: 'timestamp',
    title: 'Timestamp',
    description: 'HMAC-SHA256 over time and body, as Stripe sends it. Protects against replays.',
  },
  { id: 'sha256', title: 'SHA-256', description: 'HMAC-SHA256 over the body, as GitHub sends it.' },
  {
    id: 'standard',
    title: 'Standard Webhooks',
    description: 'HMAC-SHA256 in the headers of standardwebhooks.com. Libraries exist for many languages.',
  },
  {
    id: 'ed25519',
    title: 'Ed25519',
    description: 'Verified with a public key, so that your receiver keeps no secret.',
  },
];

export const formats: readonly Choice[] = [
  {
    id: 'json',
    title: 'JSON',
    description: 'The body of the event as it is, with its metadata in headers.',
  },
  {
    id: 'cloudevents',
    title: 'CloudEvents 1.0',
    description: 'The body in a CloudEvents envelope (structured mode).',
  },
  {
    id: 'thin',
    title: 'Thin',
    description: 'Only the id, the kind and a link to the resource. Your app reads the rest through the API.',
  },
];
