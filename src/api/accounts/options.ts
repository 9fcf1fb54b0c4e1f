/** What the routes of the accounts API share. */

import type { Sealer } from '../../crypto/sealing.ts';
import type { Actor } from '../../grants/actor.ts';
import type { ScopeCatalogue } from '../../grants/scopes.ts';
import type { RouteParts } from '../route.ts';

export interface AccountApiOptions extends RouteParts {
  scopes: ScopeCatalogue;
  /** Encrypts responses that are stored for an idempotency key. */
  sealer: Sealer;
  baseUrl: string;
  /** Origins to which users may return, from the operator's configuration. */
  returnOrigins: ReadonlySet<string>;
  /** Whether the application may sign in administrators. */
  signsInAdministrators: boolean;
}

/** The heading of these operations in the reference. */
export const tag = 'accounts';

/** Namespace of the client's idempotency keys. */
export function idempotencyNamespace({ clientId }: Actor): string {
  return `accounts - ${clientId}`;
}
