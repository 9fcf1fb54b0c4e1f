/** The shapes of a signature, in words. */

import type { Choice } from '../../ui/fields.tsx';

export const signatureShapes: readonly Choice[] = [
  {
    id: 'timestamp',
    title: 'Timestamp',
    description:
      'HMAC-SHA256 over time and body, as Stripe sends it. Old requests can be told from new ones.',
  },
  { id: 'sha256', title: 'SHA-256', description: 'HMAC-SHA256 over the body, as GitHub sends it.' },
  {
    id: 'standard',
    title: 'Standard Webhooks',
    description:
      'HMAC-SHA256 with the headers webhook-id, -timestamp and -signature; libraries for many languages.',
  },
  {
    id: 'ed25519',
    title: 'Ed25519',
    description: 'Asymmetric: verified by a public key, so that your receiver keeps no secret.',
  },
];

export const formats: readonly Choice[] = [
  {
    id: 'json',
    title: 'JSON',
    description: 'The body of the event as it is; what describes it is in headers.',
  },
  {
    id: 'cloudevents',
    title: 'CloudEvents 1.0',
    description: 'The body inside an envelope (structured mode).',
  },
];
