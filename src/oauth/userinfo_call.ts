/**
 * Reports calls of the UserInfo endpoint (OpenID Connect Core section 5.3) to the connection trace, as the guard does for those of the API:
 * the first of a connection, and refused ones.
 */

import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import { Problem } from '../http/problem.ts';
import { dashed } from '../http/problem_codes.ts';
import type { AccessTokenClaims } from './access_token.ts';
import type { ProviderError } from './explanation.ts';
import { type Call, reportCall, reportRefusedCall } from './first_call.ts';
import type { ProviderOptions } from './provider_options.ts';

const route = 'userinfo';

type UserInfoError = ProviderError & { scope?: string };

export function reportUserInfo(
  provider: Provider,
  { traces, verifier, config }: Pick<ProviderOptions, 'traces' | 'verifier' | 'config'>,
): void {
  const { baseUrl } = config;
  provider.use(async (ctx: KoaContextWithOIDC, next: () => Promise<void>) => {
    await next();
    if (ctx.oidc?.route !== route || ctx.status !== 200) return;
    const claims = verifier.peek(tokenOf(ctx));
    if (claims !== undefined) reportCall(traces, callOf(ctx), claims, baseUrl);
  });
  // The types of oidc-provider do not list this event.
  (provider as unknown as NodeJS.EventEmitter).on(
    'userinfo.error',
    (ctx: KoaContextWithOIDC, error: UserInfoError) => {
      const claims = verifier.peek(tokenOf(ctx));
      const problem = toProblem(ctx, claims, error);
      if (problem !== undefined) reportRefusedCall(traces, callOf(ctx), claims, baseUrl, problem);
    },
  );
}

function callOf(ctx: KoaContextWithOIDC): Call {
  return {
    id: String(ctx.res.getHeader('request-id') ?? ''),
    method: ctx.method,
    ip: ctx.ip,
    routeOptions: { url: ctx.path },
  };
}

/** Empty if there is none. oidc-provider accepts a token in the header or in a form. */
function tokenOf(ctx: KoaContextWithOIDC): string {
  const [, inHeader] = /^(?:bearer|dpop) +(\S+)$/i.exec(ctx.get('authorization')) ?? [];
  const inForm = (ctx.oidc?.body as { access_token?: unknown } | undefined)?.access_token;
  return inHeader ?? (typeof inForm === 'string' ? inForm : '');
}

/** The refusal as the guard of the API words it. A request without a token is not reported, as there. */
function toProblem(
  ctx: KoaContextWithOIDC,
  claims: AccessTokenClaims | undefined,
  { error, error_description: description, error_detail: detail, scope = '' }: UserInfoError,
): Problem | undefined {
  switch (error) {
    case 'invalid_token':
      if (detail === 'no access token provided') return undefined;
      return problemOf(401, error, tokenReason(ctx, claims, detail ?? ''));
    case 'insufficient_scope':
      return problemOf(403, error, `The access token lacks the scope ${scope}.`);
    case 'invalid_request':
      return problemOf(400, error, `The request is not valid: ${description}.`);
    case 'invalid_dpop_proof':
      return problemOf(401, error, 'The DPoP proof is invalid.');
    default:
      return undefined;
  }
}

type TokenError = 'invalid_token' | 'insufficient_scope' | 'invalid_request' | 'invalid_dpop_proof';

function problemOf(status: number, error: TokenError, message: string): Problem {
  return new Problem(status, message, { code: dashed(error) });
}

function tokenReason(ctx: KoaContextWithOIDC, claims: AccessTokenClaims | undefined, detail: string): string {
  if (/x5t#S256/.test(detail)) return 'The access token is bound to another client certificate.';
  if (/not sender-constrained/.test(detail)) return 'The access token is not bound to a key.';
  if (/jkt/.test(detail) && /^bearer/i.test(ctx.get('authorization')))
    return 'The access token is bound to a key: use the DPoP scheme.';
  return claims === undefined || claims.expiresAt * 1_000 <= Date.now()
    ? 'The access token is invalid or has expired.'
    : 'The access token has been revoked.';
}
