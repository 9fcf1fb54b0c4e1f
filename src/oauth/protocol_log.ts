/**
 * Logs the outcome of protocol requests: one line for each rejected request, with the request id and the exact reason
 * (clients get less detail), and one audit entry for each token issued, whose grant was used.
 */

import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import type { Logger } from 'pino';
import type { AuditLog } from '../audit/audit_log.ts';
import { consoleClientId } from '../clients/own_clients.ts';
import { redact, unknownClientId } from '../connections/redaction.ts';
import type { GrantUse } from '../grants/grant_use.ts';
import { explainRefusal, type ProviderError, paramsOf } from './explanation.ts';

/** Events of oidc-provider that report a rejected request. */
const refusals = [
  'authorization.error',
  'grant.error',
  'introspection.error',
  'revocation.error',
  'userinfo.error',
  'pushed_authorization_request.error',
  'device_authorization.error',
  'code_verification.error',
  'device_resume.error',
  'end_session.error',
  'end_session_confirm.error',
  'registration_create.error',
  'registration_read.error',
  'registration_update.error',
  'registration_delete.error',
  'jwks.error',
  'discovery.error',
] as const;

/** Subscribes to oidc-provider's events. */
export function logProtocol(provider: Provider, logger: Logger, audit: AuditLog, use: GrantUse): void {
  // oidc-provider's types list each event separately, so a loop over names does not match them.
  const on = (name: string, listener: (...values: never[]) => void) =>
    (provider as unknown as NodeJS.EventEmitter).on(name, listener as never);
  for (const name of refusals) {
    on(name, (ctx: KoaContextWithOIDC, error: ProviderError) => {
      const params = paramsOf(ctx);
      // What apps send may be a secret in the wrong place.
      const safe = (text: unknown) => (typeof text === 'string' ? redact(text, params) : undefined);
      logger.info(
        {
          request_id: requestId(ctx),
          route: ctx.oidc?.route,
          client: ctx.oidc?.client?.clientId ?? unknownClientId(params.client_id) ?? undefined,
          grant_type: safe(params.grant_type),
          status: ctx.status,
          error: error.error ?? error.name,
          description: safe(error.error_description),
          reason: safe(error.error_detail ?? (error.cause as Error | undefined)?.message),
          explanation: explainRefusal(ctx, error).explanation,
        },
        'protocol request rejected',
      );
    });
  }
  on('server_error', (ctx: KoaContextWithOIDC, error: Error) => {
    logger.error(
      { request_id: requestId(ctx), route: ctx.oidc?.route, err: error },
      'protocol request failed',
    );
  });
  // Without a listener, Koa prints the stack of errors outside oidc-provider's own handling to stderr.
  on('error', (error: Error & { expose?: boolean }, ctx: KoaContextWithOIDC | undefined) => {
    if (error.expose === true) return;
    const request_id = ctx === undefined ? undefined : requestId(ctx);
    logger.error({ request_id, err: error }, 'protocol request failed');
  });
  on('backchannel.error', (ctx: KoaContextWithOIDC, error: Error, client: { clientId: string }) => {
    logger.warn(
      { request_id: requestId(ctx), client: client.clientId, err: error },
      'back-channel logout failed',
    );
  });
  on('grant.success', (ctx: KoaContextWithOIDC) => {
    const { entities, params, client } = ctx.oidc;
    const grantId = entities.AccessToken?.grantId ?? null;
    if (grantId !== null) use.add(grantId);
    // The console was reloaded. The sign-in itself is recorded as `grant.created`.
    if (client?.clientId === consoleClientId && params?.grant_type === 'authorization_code') return;
    const token = entities.AccessToken ?? entities.ClientCredentials;
    audit.add({
      kind: 'token.issued',
      accountId: entities.AccessToken?.accountId ?? null,
      clientId: client?.clientId ?? null,
      grantId,
      details: { grant_type: params?.grant_type, scope: token?.scope, request_id: requestId(ctx) },
    });
  });
}

function requestId(ctx: KoaContextWithOIDC): string {
  return String(ctx.res.getHeader('request-id') ?? '');
}
