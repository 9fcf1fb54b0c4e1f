/**
 * Checks the metadata of apps that accounts create over `/apps`: oidc-provider's checks and the registration policy, as for
 * self-registered apps. In addition, such an app may use `client_credentials` if it authenticates.
 */

import { errors, type KoaContextWithOIDC, type Provider } from 'oidc-provider';
import {
  accountGrantTypes,
  type CheckMetadata,
  type Metadata,
  settableMembers,
} from '../../apps/metadata.ts';
import { sectorError } from '../../clients/metadata.ts';
import type { ScopeCatalogue } from '../../grants/scopes.ts';
import { bodyProblem } from '../../http/problem.ts';
import { placeholderSecret } from '../provider_client.ts';
import { registrationScopes, toSelfDescription } from './client_storage.ts';
import { grantableScopes } from './policy.ts';

/** Marks these apps for oidc-provider's `extraClientMetadata` validator. */
export const accountRoute = 'account_app';

export const accountGrantTypeSet: ReadonlySet<string> = new Set(accountGrantTypes);

type ProviderClient = new (metadata: object, ctx: unknown) => { metadata(): object };

/** @param provider returns the current provider */
export function createMetadataCheck(provider: () => Provider, catalogue: ScopeCatalogue): CheckMetadata {
  return (metadata, id, issuedAt) => {
    refuseUnknownScopes(metadata, catalogue);
    const sent: Metadata = { grant_types: ['authorization_code', 'refresh_token'], ...metadata };
    // The validation of a client reads only these two members of a request's context.
    const ctx = { oidc: { route: accountRoute, body: sent } } as unknown as KoaContextWithOIDC;
    const sector = sectorError(sent, (sent.redirect_uris ?? []) as string[]);
    if (sector !== undefined) throw toProblem(new errors.InvalidClientMetadata(sector));
    const { Client } = provider();
    try {
      const checked = new (Client as unknown as ProviderClient)(
        {
          redirect_uris: [],
          ...sent,
          client_id: id,
          client_id_issued_at: Math.floor(issuedAt.getTime() / 1_000),
          ...(needsSecret(sent) ? { client_secret: placeholderSecret } : {}),
        },
        ctx,
      ).metadata() as Metadata;
      return toSelfDescription(checked, registrationScopes(ctx) ?? [], id);
    } catch (error) {
      if (error instanceof errors.OIDCProviderError) throw toProblem(error);
      throw error;
    }
  };
}

function needsSecret({ token_endpoint_auth_method: method = 'client_secret_basic' }: Metadata): boolean {
  return String(method).startsWith('client_secret_');
}

/** Rejects unknown scopes. A self-registered app gets the subset that exists; a management API reports the error. */
function refuseUnknownScopes({ scope }: Metadata, catalogue: ScopeCatalogue): void {
  if (typeof scope !== 'string' || scope === '') return;
  const offered = grantableScopes(catalogue);
  const other = scope.split(' ').find((name) => !offered.includes(name));
  if (other === undefined) return;
  const message = `contains ${JSON.stringify(other.slice(0, 100))}, which apps cannot have; allowed scopes: ${offered.join(' ')}`;
  throw bodyProblem([{ pointer: '/scope', message, code: 'invalid-client-metadata' }]);
}

function toProblem({ error, error_description: description }: errors.OIDCProviderError) {
  const message = description ?? 'is not valid';
  const named = /^[a-z_]+/.exec(message)?.[0];
  const isMember = named !== undefined && Object.hasOwn(settableMembers, named);
  const pointer = isMember ? `/${named}` : error === 'invalid_redirect_uri' ? '/redirect_uris' : '';
  return bodyProblem([
    {
      pointer,
      message,
      code: error === 'invalid_redirect_uri' ? 'invalid-redirect-uri' : 'invalid-client-metadata',
    },
  ]);
}
