/**
 * The page at the base URL. In production it redirects to the operator's own page, or shows users where to go. In
 * development it is a tour of the server.
 */

import type { FastifyInstance } from 'fastify';
import { type Html, html } from './html.ts';
import { sendPage } from './page.ts';

/** What the tour shows in development. */
export interface Tour {
  /** Null if there is no demo user. */
  user: { email: string; password: string } | null;
}

export interface StartPageOptions {
  /** Null in production. */
  tour: Tour | null;
  /** The operator's own page; null for none. */
  startUrl: string | null;
}

export function registerStartPage(app: FastifyInstance, { tour, startUrl }: StartPageOptions): void {
  app.get('/', async (_request, reply) => {
    if (startUrl !== null) return reply.header('cache-control', 'no-store').redirect(startUrl, 302);
    return sendPage(reply, 200, 'Start', tour === null ? start : tourPage(tour));
  });
}

const start = html`<h1>Connect apps to your account</h1>
<p class="soft">Control what each app can do. Disconnect it at any time.</p>
<ul class="scopes">
<li><a href="/account">Your account</a>: see and disconnect apps</li>
<li><a href="/device">Connect a device</a>: enter the code on its screen</li>
</ul>
<h2>For developers</h2>
<ul class="scopes">
<li><a href="/console">Console</a>: manage apps and webhooks</li>
<li><a href="/docs/">API reference</a>: try operations and browse events</li>
</ul>`;

function tourPage({ user }: Tour): Html {
  return html`<h1>Your server is running</h1>
<p class="soft">This tour shows what users, app developers and your services see.</p>
<ol class="steps">
<li><h2>Sign in as a user</h2>
${
  user === null
    ? html`<p>There is no demo user, because other computers can reach the server. Create one with <code>npm run -s nuncio -- user create</code>, then open <a href="/account">the account page</a>.</p>`
    : html`<p>Sign in to <a href="/account">the account page</a> as <code>${user.email}</code> with the password <code>${user.password}</code>.</p>`
}</li>
<li><h2>Connect an app</h2>
<p>Run <code>npm run demo</code> in another terminal. Connect the demo app, publish an article, and watch the signed event arrive.</p></li>
<li><h2>Manage apps and webhooks</h2>
<p>Open <a href="/console">the console</a>: register an app, subscribe a URL to events, and inspect each delivery.</p></li>
<li><h2>Publish an event</h2>
<p>Run <code>npm run -s nuncio -- trigger push</code>. It reaches every subscription that may receive it.</p></li>
<li><h2>Read the API</h2>
<p><a href="/docs/">The reference</a> lists every operation and event and sends requests for you.</p></li>
</ol>
<p class="soft small">This tour is shown in development only. In production <code>/</code> leads to your own page (<code>startUrl</code> in <code>nuncio.config.ts</code>).</p>`;
}
