/** The page at `/`: where somebody who opens the base URL in a browser can go from there. */

import type { FastifyInstance } from 'fastify';
import { html } from './html.ts';
import { sendPage } from './page.ts';

export function registerStartPage(app: FastifyInstance): void {
  app.get('/', async (_request, reply) => {
    return sendPage(
      reply,
      200,
      'Start',
      html`<h1>This is Nuncio</h1>
<p class="soft">It lets apps act for people, within what each of them has allowed, and tells those apps what changes.</p>
<ul class="scopes">
<li><a href="/account">Your account</a>: the apps that act for you</li>
<li><a href="/device">Connect a device</a>: enter the code that it shows</li>
<li><a href="/docs">Reference</a>: the API and its events, to try</li>
<li><a href="/.well-known/oauth-authorization-server">Metadata</a> of the authorization server</li>
</ul>`,
    );
  });
}
