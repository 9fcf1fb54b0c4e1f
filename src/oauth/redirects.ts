/**
 * Redirects to apps. The response to an authorization request is a 302 to its `redirect_uri` (RFC 6749 section 4.1.2). An
 * app that the operator did not register may have any address. To avoid an open redirector, its users are redirected only
 * after they acted on one of our pages in the same transaction (RFC 9700 section 4.11.2). Otherwise they get a page with
 * a link.
 */
import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import type { ClientCache } from '../clients/client_cache.ts';
import { isUserAction } from './interaction_binding.ts';
import type { ProviderOptions, ProviderPages } from './provider_options.ts';

type Options = Pick<ProviderOptions, 'clients' | 'pages'>;

/**
 * Characters of a redirect. Proxies have a limit for the headers of a response: behind the nginx of docs/operations.md, 32 KiB. nginx takes a longer
 * one for a failure of the node, and sends nobody there for ten seconds.
 */
export const locationLengthMax = 16_384;
export type ResponseMode = Parameters<Provider['registerResponseMode']>[1];
type Payload = Parameters<ResponseMode>[2];

/** Wraps a response mode, through which oidc-provider sends every response to a `redirect_uri`. */
export function createResponseMode(
  name: string,
  handler: ResponseMode,
  { clients, pages }: Options,
): ResponseMode {
  return async (ctx, redirectUri, payload) => {
    const isUnprompted = 'error' in payload && !hasUserActed(ctx);
    if (isUnprompted && !(await isOperatorMade(clients, ctx.oidc.client?.clientId))) {
      return showError(ctx, { pages, isForm: name === 'form_post', handler, redirectUri, payload });
    }
    await handler(ctx, redirectUri, payload);
    if (ctx.status === 303) ctx.status = 302;
  };
}

/**
 * Whether the user submitted a form for this request. The parameters must come from the interaction
 * (interaction_binding.ts), not from the URL: sign-in at the application may consist of redirects alone.
 */
function hasUserActed({ oidc }: KoaContextWithOIDC): boolean {
  return oidc.route === 'resume' && oidc.params !== undefined && isUserAction(oidc.entities.Interaction);
}

/** False if the app cannot be looked up. */
async function isOperatorMade(clients: ClientCache, id: string | undefined): Promise<boolean> {
  const cached = await clients.find(id ?? '').catch(() => undefined);
  return cached?.client.origin === 'operator';
}

/** An authorization response. */
interface AuthorizationResponse {
  pages: ProviderPages;
  /** Whether the response mode is a form (OAuth 2.0 Form Post Response Mode) and not a URL. */
  isForm: boolean;
  handler: ResponseMode;
  redirectUri: string;
  payload: Payload;
}

async function showError(ctx: KoaContextWithOIDC, response: AuthorizationResponse): Promise<void> {
  const { pages, isForm, handler, redirectUri, payload } = response;
  let url = redirectUri;
  if (!isForm) {
    await handler(ctx, redirectUri, payload);
    url = ctx.response.get('location');
    ctx.remove('location');
  }
  if (ctx.status < 400) ctx.status = 400;
  ctx.type = 'html';
  ctx.body = pages.leave({
    appName: ctx.oidc.client?.clientName ?? ctx.oidc.client?.clientId ?? '',
    url,
    fields: isForm ? textFields(payload) : null,
    error: {
      code: String(payload.error),
      description: String(payload.error_description ?? ''),
      requestId: String(ctx.res.getHeader('request-id') ?? ''),
    },
  });
}

function textFields(payload: Payload): Record<string, string> {
  return Object.fromEntries(Object.entries(payload).map(([name, value]) => [name, String(value)]));
}

/** Shows a page in place of redirects that are too long: their parameters, such as `state`, come from whoever sends the request. */
export function limitRedirects({ pages }: Options) {
  return async (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> => {
    await next();
    if (String(ctx.res.getHeader('location') ?? '').length <= locationLengthMax) return;
    ctx.remove('location');
    ctx.status = 400;
    ctx.type = 'html';
    ctx.body = pages.error({
      code: 'invalid_request',
      description: 'the parameters of the request are too long for a redirect',
      requestId: String(ctx.res.getHeader('request-id') ?? ''),
    });
  };
}

/**
 * `/oauth/logout` in a browser that is already signed out: oidc-provider would redirect to the app by a self-submitting form
 * (OpenID Connect RP-Initiated Logout section 3). This middleware replaces the form by a page with a link.
 */
export function confirmSignedOutRedirect({ clients, pages }: Options) {
  return async (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> => {
    if (ctx.path !== '/oauth/logout') return next();
    const policy = ctx.response.get('content-security-policy');
    await next();
    const { params, client, session } = ctx.oidc ?? {};
    const address = params?.post_logout_redirect_uri;
    if (ctx.status !== 200 || client === undefined || typeof address !== 'string') return;
    if (session?.accountId !== undefined || (await isOperatorMade(clients, client.clientId))) return;
    const url = new URL(address);
    if (typeof params?.state === 'string') url.searchParams.set('state', params.state);
    // The original policy, without the script that oidc-provider allowed for its form.
    ctx.set('content-security-policy', policy);
    const appName = client.clientName ?? client.clientId;
    ctx.body = pages.leave({ appName, url: url.href, fields: null, error: null });
  };
}
