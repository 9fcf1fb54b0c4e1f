/**
 * `/dev/mail`: the mails that a server in development has kept instead of sending them. They may contain links that sign in,
 * so only browsers on the same machine can see them. The HTML of a mail is shown in a sandboxed frame without scripts.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { type Html, html } from '../http/html.ts';
import { isDirectAndLocal } from '../http/metrics_access.ts';
import { addressMatcher } from '../http/network.ts';
import { Problem } from '../http/problem.ts';
import type { KeptMail, MailBox } from '../mail/transport.ts';
import { pageHeaders, renderPage, sendPage } from './page.ts';

/** Allows inline styles, which mails need, and nothing else. */
const framePolicy =
  "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-popups allow-popups-to-escape-sandbox; frame-ancestors 'self'; base-uri 'none'; form-action 'none'";

export function registerMailBox(app: FastifyInstance, mailBox: MailBox, trustProxy: readonly string[]): void {
  const isProxy = addressMatcher(trustProxy);

  app.get('/dev/mail', async (request, reply) => {
    requireLocal(request);
    return sendPage(reply, 200, 'Mail', listContent(mailBox.list()));
  });

  app.get('/dev/mail/:number', async (request, reply) => {
    const mail = find(request);
    if (mail === undefined) return sendPage(reply, 404, 'Mail not found', missingContent);
    const policy = `${pageHeaders['content-security-policy']}; frame-src 'self'`;
    return reply
      .headers({ ...pageHeaders, 'content-security-policy': policy })
      .type('text/html; charset=utf-8')
      .send(renderPage(app.brand, 'Mail', mailContent(mail)));
  });

  app.get('/dev/mail/:number/html', async (request, reply) => {
    const mail = find(request);
    if (mail === undefined) return sendPage(reply, 404, 'Mail not found', missingContent);
    return reply
      .headers({ ...pageHeaders, 'content-security-policy': framePolicy, 'x-frame-options': 'SAMEORIGIN' })
      .type('text/html; charset=utf-8')
      .send(mail.html.replace('<head>', '<head>\n<base target="_blank">'));
  });

  function find(request: FastifyRequest): KeptMail | undefined {
    requireLocal(request);
    return mailBox.find(Number((request.params as { number: string }).number));
  }

  function requireLocal(request: FastifyRequest): void {
    if (isDirectAndLocal(request, isProxy)) return;
    throw new Problem(403, 'Mails are shown on the machine of the server only.', { code: 'mail-local' });
  }
}

function listContent(mails: readonly KeptMail[]): Html {
  return html`<h1>Mail</h1>
<p class="soft">Without <code>NUNCIO_SMTP_URL</code>, mails are kept here until the server stops, and not sent.</p>
${
  mails.length === 0
    ? html`<p>There is no mail yet.</p>`
    : html`<ul class="apps">${mails.map(
        (mail) => html`<li><a href="/dev/mail/${mail.number}"><strong>${mail.subject}</strong></a>
<p class="soft small">To ${mail.to}, ${time(mail.at)}</p></li>`,
      )}</ul>`
}`;
}

function mailContent(mail: KeptMail): Html {
  const headers = [
    ['From', `${mail.from.name} <${mail.from.address}>`],
    ['To', mail.to],
    ['Message-ID', mail.messageId],
    ['List-Unsubscribe', mail.unsubscribeUrl],
  ].filter(([, value]) => value !== null);
  return html`<p><a href="/dev/mail">All mail</a></p>
<h1>${mail.subject}</h1>
<p class="soft small">${time(mail.at)}</p>
<iframe class="mail" src="/dev/mail/${mail.number}/html" sandbox="allow-popups allow-popups-to-escape-sandbox" title="The mail as HTML"></iframe>
<details><summary>As text</summary><pre>${mail.text}</pre></details>
<details><summary>Headers</summary><pre>${headers.map(([name, value]) => `${name}: ${value}`).join('\n')}</pre></details>`;
}

const missingContent = html`<h1>Mail not found</h1>
<p>The server keeps the newest 100 mails, until it stops. <a href="/dev/mail">All mail</a></p>`;

function time(at: Date): Html {
  const text = at.toISOString();
  return html`<time datetime="${text}">${text.slice(0, 19).replace('T', ' ')} UTC</time>`;
}
