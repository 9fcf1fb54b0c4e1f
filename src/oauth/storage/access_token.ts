/**
 * Access tokens as oidc-provider looks them up for revocation, introspection and userinfo. JWTs are not stored: their claims
 * are read from the verified token. Opaque tokens are rows. Owns the table `access_tokens`.
 */

import { sql } from 'kysely';
import { type AdapterPayload, Provider } from 'oidc-provider';
import { accessTokenSeconds } from '../../clients/access_token_lifetime.ts';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { isWithdrawn, withdrawToken } from '../../grants/withdrawals.ts';
import {
  type AccessTokenClaims,
  type AccessTokenVerifier,
  type OwnClaims,
  toAudience,
} from '../access_token.ts';
import { epochOf } from '../provider_client.ts';
import { runDeferredConsumption } from './deferred_consumption.ts';
import { grantRevisionOf, savePendingGrant } from './grant.ts';
import { type ModelStorage, revokedWithGrant } from './storage.ts';

/** @param kind `AccessToken` for tokens of a grant, `ClientCredentials` for tokens of a client acting for itself */
export function accessTokenStorage(
  kind: 'AccessToken' | 'ClientCredentials',
  db: Database,
  verifier: AccessTokenVerifier,
  baseUrl: string,
): ModelStorage {
  return {
    async upsert(value, payload, expiresIn) {
      await savePendingGrant(db);
      await runDeferredConsumption();
      const { jti: _value, ...members } = payload;
      const claims = {
        ...members,
        clientEpoch: epochOf(Provider.ctx?.oidc.client),
        grantRevision: grantRevisionOf(payload.grantId),
      };
      await sql`
        insert into access_tokens (digest, token_id, grant_id, payload, expires_at)
        values (${digest(value)}, ${tokenIdOf(value)}, ${payload.grantId ?? null}, ${JSON.stringify(claims)},
          now() + ${expiresIn} * interval '1 second')`.execute(db);
    },
    async find(value) {
      const claims = await verifier.verifyForAny(fromOpaqueForm(value));
      if (claims === undefined || (claims.grantId === null) !== (kind === 'ClientCredentials'))
        return undefined;
      if (await isWithdrawn(db, claims)) return undefined;
      return toPayload(claims, kind, baseUrl);
    },
    async destroy(tokenId) {
      await withdrawToken(db, tokenId, new Date(Date.now() + accessTokenSeconds * 1_000));
    },
    revokeByGrantId: revokedWithGrant,
  };
}

/** The id of an opaque token, which reveals nothing about the token. */
function tokenIdOf(value: string): string {
  return digest(`id\n${value}`).toString('base64url');
}

/** The lookup of opaque tokens for AccessTokenVerifier. */
export function opaqueTokenLookup(db: Database): (token: string) => Promise<OwnClaims | undefined> {
  return async (token) => {
    const { rows } = await sql<{ token_id: string; payload: AdapterPayload }>`
      select token_id, payload from access_tokens
      where digest = ${digest(token)} and expires_at > now()`.execute(db);
    const row = rows[0];
    if (row === undefined) return undefined;
    const { payload } = row;
    return {
      tokenId: row.token_id,
      accountId: payload.accountId ?? null,
      externalId: (payload.extra?.external_id as string | undefined) ?? null,
      clientId: payload.clientId as string,
      clientEpoch: payload.clientEpoch as string,
      grantId: payload.grantId ?? null,
      grantRevision: (payload.grantRevision as number | undefined) ?? 0,
      scopes: new Set((payload.scope ?? '').split(' ').filter(Boolean)),
      audience: toAudience(payload.aud),
      issuedAt: payload.iat as number,
      expiresAt: payload.exp as number,
      jkt: payload.jkt ?? null,
      certificateThumbprint: payload['x5t#S256'] ?? null,
    };
  };
}

/**
 * oidc-provider rejects JWTs at the revocation and introspection endpoints. In this form it does not recognize a JWT and asks
 * the storage.
 */
export function toOpaqueForm(token: string): string {
  return token.replaceAll('.', '!');
}

function fromOpaqueForm(value: string): string {
  return value.replaceAll('!', '.');
}

/**
 * Whether a client with pairwise subjects introspects a token of its own. It must not learn an id of its user that other clients
 * know.
 */
function isPairwiseOwner({ clientId }: AccessTokenClaims): boolean {
  const client = Provider.ctx?.oidc.client;
  return client?.clientId === clientId && client.subjectType === 'pairwise';
}

function toPayload(claims: AccessTokenClaims, kind: string, baseUrl: string): AdapterPayload {
  // Userinfo belongs to this server too, so a token for the server's own API is valid there.
  const isOurs = claims.audience.includes(baseUrl);
  const aud = claims.audience.length === 1 ? claims.audience[0] : claims.audience;
  const audience = Provider.ctx?.oidc.route === 'userinfo' && isOurs ? {} : { aud };
  return {
    kind,
    jti: claims.tokenId,
    clientId: claims.clientId,
    ...(claims.accountId === null ? {} : { accountId: claims.accountId }),
    ...(claims.externalId === null || isPairwiseOwner(claims)
      ? {}
      : { extra: { external_id: claims.externalId } }),
    ...(claims.grantId === null ? {} : { grantId: claims.grantId }),
    scope: [...claims.scopes].join(' '),
    iat: claims.issuedAt,
    exp: claims.expiresAt,
    ...audience,
    ...(claims.jkt === null ? {} : { jkt: claims.jkt }),
    ...(claims.certificateThumbprint === null ? {} : { 'x5t#S256': claims.certificateThumbprint }),
  } as AdapterPayload;
}
