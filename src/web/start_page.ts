/**
 * The page at the base URL. In production it leads to the operator's own page, or shows users where to go. In development
 * it is a tour for whoever has just started the server.
 */

import type { FastifyInstance } from 'fastify';
import { type Html, html } from './html.ts';
import { sendPage } from './page.ts';

/** What the tour tells about the server that runs in development mode. */
export interface Tour {
  /** The demo user; null where none was made. */
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
<p class="soft">Control what each app can do, and disconnect it at any time.</p>
<ul class="scopes">
<li><a href="/account">Your account</a>: the apps that are connected</li>
<li><a href="/device">Connect a device</a>: enter the code that it shows</li>
</ul>
<h2>For developers</h2>
<ul class="scopes">
<li><a href="/console">Console</a>: your apps and webhooks</li>
<li><a href="/docs/">API reference</a>: operations and events, to try</li>
</ul>`;

function tourPage({ user }: Tour): Html {
  return html`<h1>Your server runs</h1>
<p class="soft">Take the tour: it shows what users, app developers and your own services see.</p>
<ol class="steps">
<li><h2>Be a user</h2>
${
  user === null
    ? html`<p>No demo user was made, because the server is not on loopback alone. Make one with <code>npm run -s nuncio -- user create</code>, then open <a href="/account">the account page</a>.</p>`
    : html`<p>Sign in to <a href="/account">the account page</a> as <code>${user.email}</code> with the password <code>${user.password}</code>.</p>`
}</li>
<li><h2>Connect an app</h2>
<p>Run <code>npm run demo</code> in another terminal. It is a small app: connect it, publish an article, and watch the signed event arrive.</p></li>
<li><h2>Be an app developer</h2>
<p>Open <a href="/console">the console</a>: register an app, subscribe a URL to events, and look at each delivery.</p></li>
<li><h2>Publish an event</h2>
<p>Run <code>npm run -s nuncio -- trigger push</code>. It reaches every subscription that may receive it.</p></li>
<li><h2>Read the API</h2>
<p><a href="/docs/">The reference</a> shows every operation and event, and sends requests for you.</p></li>
</ol>
<p class="soft small">This page is shown in development only. In production <code>/</code> leads to your own page (<code>startUrl</code> in <code>nuncio.config.ts</code>).</p>`;
}
