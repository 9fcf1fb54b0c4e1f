/**
 * Sign-in on the application's own page (accounts/login_request.ts): redirects the browser there and back. Works without
 * JavaScript.
 *
 *   GET /interaction/<uid> or /account → <url>?login_request=<id> → …/continue?login_verifier=<secret>
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import {
  createLoginRequest,
  type FinishedLoginRequest,
  finishLoginRequest,
  loginRequestSeconds,
  loginRequestSuffix,
  type NewLoginRequest,
} from '../accounts/login_request.ts';
import type { AccountSettings } from '../accounts/settings.ts';
import type { Database } from '../database/database.ts';
import { readCookie } from '../http/cookie.ts';
import { html } from '../http/html.ts';
import { countAddress, type RateLimiter } from '../http/rate_limit.ts';
import { sendPage } from './page.ts';

export interface HandedOverLogin {
  /**
   * Redirects the browser to the application.
   * @throws Problem 429 if the client address has begun too many sign-ins
   */
  begin: (request: FastifyRequest, reply: FastifyReply, login: NewLoginRequest) => Promise<FastifyReply>;
  /**
   * Returns the application's result, or undefined after sending an error page.
   * @param interactionUid the authorization request; null for the account page
   */
  finish: (
    request: FastifyRequest,
    reply: FastifyReply,
    interactionUid: string | null,
  ) => Promise<FinishedLoginRequest | undefined>;
}

export function createHandedOverLogin(
  db: Database,
  baseUrl: string,
  login: NonNullable<AccountSettings['login']>,
  limiter: RateLimiter,
): HandedOverLogin {
  const isSecure = baseUrl.startsWith('https:');
  // Lax: the browser comes back from another site.
  const attributes = `Path=/; HttpOnly; SameSite=Lax; Max-Age=${loginRequestSeconds}${isSecure ? '; Secure' : ''}`;
  const cookieName = (mark: string) => `${isSecure ? '__Host-' : ''}nuncio_login_${mark}`;

  return {
    async begin(request, reply, asked) {
      // Each sign-in stores a row and requires no authentication, so it is limited.
      countAddress(limiter, 'begin ', request.ip);
      const begun = await createLoginRequest(db, asked);
      if (begun === undefined) return sendPage(reply, 429, 'Too many attempts', tooManyContent);
      const url = new URL(login.url);
      url.searchParams.set('login_request', begun.id);
      return reply
        .header(
          'set-cookie',
          `${cookieName(loginRequestSuffix(begun.id))}=${begun.browserSecret}; ${attributes}`,
        )
        .headers({ 'cache-control': 'no-store', 'referrer-policy': 'no-referrer' })
        .redirect(url.href, 303);
    },

    async finish(request, reply, interactionUid) {
      const { login_verifier: verifier } = request.query as Record<string, unknown>;
      let used: string | undefined;
      const readSecret = (mark: string) => {
        used = cookieName(mark);
        return readCookie(request.headers.cookie, used);
      };
      const result =
        typeof verifier === 'string'
          ? await finishLoginRequest(db, verifier, interactionUid, login.administrators, readSecret)
          : undefined;
      if (result === undefined) {
        sendPage(reply, 400, 'Sign-in not completed', unfinishedContent);
        return undefined;
      }
      if (used !== undefined) {
        const gone = attributes.replace(/Max-Age=\d+/, 'Max-Age=0');
        // oidc-provider sets the session cookie on the raw response. A header set through Fastify would replace it.
        if (interactionUid === null) reply.raw.appendHeader('set-cookie', `${used}=; ${gone}`);
        else reply.header('set-cookie', `${used}=; ${gone}`);
      }
      return result;
    },
  };
}

const tooManyContent = html`<h1>Too many attempts</h1>
<p>This request was opened too often. Go back to the app that you want to connect and start again.</p>`;

const unfinishedContent = html`<h1>Sign-in not completed</h1>
<p>A sign-in works once, within ten minutes, in the browser where it started.</p>
<p>Go back to the app that you want to connect and start again. Use the same browser throughout.</p>`;
