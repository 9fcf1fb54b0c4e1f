/**
 * The page at the base URL. In production it redirects to the operator's own page, or shows users where to go. In
 * development it is a tour of the server.
 */

import type { FastifyInstance } from 'fastify';
import { type Html, html } from '../http/html.ts';
import { sendPage } from './page.ts';

/** What the tour shows in development. */
export interface Tour {
  /** Null if there is no demo user. */
  user: { email: string; password: string } | null;
  /** The application's own login page; null if accounts sign in here. */
  loginUrl: string | null;
  /** How this installation runs commands. */
  command: string;
  /** The command that starts the demo app; null if it is not part of this installation or platform. */
  demo: string | null;
  /** An event kind of the platform; null if a command cannot publish one. */
  kind: string | null;
}

export interface StartPageOptions {
  /** Null in production. */
  tour: Tour | null;
  /** The operator's own page; null for none. */
  startUrl: string | null;
  /** Whether mails are kept and shown instead of sent. Default: false. */
  keepsMail?: boolean;
}

export function registerStartPage(
  app: FastifyInstance,
  { tour, startUrl, keepsMail = false }: StartPageOptions,
): void {
  app.get('/', async (_request, reply) => {
    if (startUrl !== null) return reply.header('cache-control', 'no-store').redirect(startUrl, 302);
    return sendPage(reply, 200, 'Start', tour === null ? start : tourPage(tour, keepsMail));
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

function tourPage(tour: Tour, keepsMail: boolean): Html {
  return html`<h1>Your server is running</h1>
<p class="soft">This tour shows what users, app developers and your services see.</p>
<ol class="steps">
<li><h2>Sign in as a user</h2>
<p>${signInStep(tour)}</p></li>
<li><h2>Connect an app</h2>
<p>${
    tour.demo === null
      ? html`Register one with <code>${tour.command} client create</code>, and send a user to the authorization endpoint. It asks the user for permission.`
      : html`Run <code>${tour.demo}</code> in another terminal. Connect the demo app, publish an article, and watch the signed event arrive.`
  }</p></li>
<li><h2>Manage apps and webhooks</h2>
<p>Open <a href="/console">the console</a>: register an app, subscribe a URL to events, and inspect each delivery.</p></li>
<li><h2>Publish an event</h2>
<p>${publishStep(tour)}</p></li>
<li><h2>Read the API</h2>
<p><a href="/docs/">The reference</a> lists every operation and event and sends requests for you.</p></li>
</ol>
${keepsMail && html`<p class="soft small">Mails are not sent, but kept at <a href="/dev/mail">/dev/mail</a>.</p>`}
<p class="soft small">This tour is shown in development only. In production <code>/</code> leads to your own page (<code>startUrl</code> in <code>nuncio.config.ts</code>).</p>`;
}

function signInStep({ user, loginUrl, command }: Tour): Html {
  if (user !== null)
    return html`Sign in to <a href="/account">the account page</a> as <code>${user.email}</code> with the password <code>${user.password}</code>.`;
  if (loginUrl !== null)
    return html`Open <a href="/account">the account page</a>. Your application signs the user in at <code>${loginUrl}</code>.`;
  return html`There is no demo user, because other computers can reach the server. Create one with <code>${command} user create</code>, then open <a href="/account">the account page</a>.`;
}

function publishStep({ kind, user, command }: Tour): Html {
  if (kind === null)
    return html`Declare an event kind in <code>nuncio.config.ts</code>, and publish it with <code>POST /events</code>.`;
  const words = `${command} trigger ${kind}${user === null ? ' --account ID' : ''}`;
  return html`Run <code>${words}</code>. The event reaches every subscription that may receive it.`;
}
