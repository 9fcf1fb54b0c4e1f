/**
 * Verification code for each signature format in six languages. For any headers the code returns false or, where it uses a
 * library, throws what the library throws. A test runs the code for Node.js, Python, Go and Java on
 * deliveries that the server has signed. No test runs the code for Ruby and PHP.
 */

import type { Sample } from './code_sample.ts';
import { sha256Code, timestampCode } from './signature_header_code.ts';
import { ed25519Code, standardCode } from './standard_webhooks_code.ts';

/** The values of the server that the code uses. */
export interface SampleFacts {
  /** The header names of this server. */
  headers: { signature: string };
  /** `whpk_…`; for `ed25519`. */
  publicKey: string;
}

export function samplesFor(signature: string, facts: SampleFacts): readonly Sample[] {
  if (signature === 'sha256') return sha256Code(facts.headers.signature);
  if (signature === 'standard') return standardCode;
  if (signature === 'ed25519') return ed25519Code(facts.publicKey);
  return timestampCode(facts.headers.signature);
}
