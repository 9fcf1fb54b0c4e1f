/**
 * Redirects to addresses of apps. An answer to an authorization request goes to its `redirect_uri` by 302 (RFC 6749
 * section 4.1.2). An app that the operator did not make can have any address: nobody is sent there before they act on a
 * page of ours in the same transaction (RFC 9700 section 4.11.2). They get a page with a link instead.
 */

import { type KoaContextWithOIDC, Provider } from 'oidc-provider';
import type { ClientCache } from '../clients/client_cache.ts';
import type { EngineOptions, EnginePages } from './engine_options.ts';
import { isAct } from './interaction_binding.ts';

type Options = Pick<EngineOptions, 'clients' | 'pages'>;
type ResponseMode = Parameters<Provider['registerResponseMode']>[1];
type Payload = Parameters<ResponseMode>[2];

/** The engine registers its response modes by this method, and sends every answer to a `redirect_uri` by one of them. */
export function engineClass({ clients, pages }: Options): typeof Provider {
  return class extends Provider {
    override registerResponseMode(name: string, handler: ResponseMode): void {
      super.registerResponseMode(name, async (ctx, redirectUri, payload) => {
        const isUnprompted = 'error' in payload && !hasActed(ctx);
        if (isUnprompted && !(await isOperatorMade(clients, ctx.oidc.client?.clientId))) {
          return showError(ctx, { pages, isForm: name === 'form_post', handler, redirectUri, payload });
        }
        await handler(ctx, redirectUri, payload);
        if (ctx.status === 303) ctx.status = 302;
      });
    }
  };
}

/**
 * Whether the user sent a form of this very request: the engine takes the parameters from the interaction
 * (interaction_binding.ts) and not from the URL. A sign-in at the application can take redirects alone.
 */
function hasActed({ oidc }: KoaContextWithOIDC): boolean {
  return oidc.route === 'resume' && oidc.params !== undefined && isAct(oidc.entities.Interaction);
}

/** An app that cannot be looked up at the moment is taken for one that nobody has checked. */
async function isOperatorMade(clients: ClientCache, id: string | undefined): Promise<boolean> {
  const cached = await clients.find(id ?? '').catch(() => undefined);
  return cached?.client.origin === 'operator';
}

interface Answer {
  pages: EnginePages;
  /** Whether the answer is a form (OAuth 2.0 Form Post Response Mode) and not a URL. */
  isForm: boolean;
  handler: ResponseMode;
  redirectUri: string;
  payload: Payload;
}

async function showError(ctx: KoaContextWithOIDC, answer: Answer): Promise<void> {
  const { pages, isForm, handler, redirectUri, payload } = answer;
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

/**
 * `/oauth/logout` of a browser that is signed out already: the engine would send it on to the app by a form that a
 * script submits (OpenID Connect RP-Initiated Logout section 3).
 */
export function holdSignedOut({ clients, pages }: Options) {
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
    // Without the script that the engine allowed for its form.
    ctx.set('content-security-policy', policy);
    const appName = client.clientName ?? client.clientId;
    ctx.body = pages.leave({ appName, url: url.href, fields: null, error: null });
  };
}
