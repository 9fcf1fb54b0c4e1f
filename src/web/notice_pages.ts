/** Mail notices on the account page, and the page behind the link in every notice. Works without JavaScript. */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Account } from '../accounts/account.ts';
import { mailAddressOf } from '../accounts/mail_address.ts';
import type { Database } from '../database/database.ts';
import { type Html, html } from '../http/html.ts';
import { noticeEvents, noticeKinds } from '../notices/kinds.ts';
import { changeChoices, concernsNotices, type NoticeChoices, readChoices } from '../notices/preferences.ts';
import { type UnsubscribeTokens, unsubscribePath } from '../notices/unsubscribe.ts';
import { type FormTokens, formTokenField } from './form_token.ts';
import { sendPage } from './page.ts';

/** The account of the page, and the secret that binds its forms. */
interface PageOwner {
  account: Account;
  secret: string;
}

/** Maximum size of the body of an unsubscribing request in bytes. It says nothing that the token does not. */
const bodyBytesMax = 16_384;

/**
 * The section of the account page.
 * @param isSaved whether the choices were just saved
 * @returns false if the account cannot get notices, also because its address is not verified
 */
export async function noticesContent(
  db: Database,
  account: Account,
  token: string,
  isSaved: boolean,
): Promise<Html | false> {
  const email = await mailAddressOf(db, account.id);
  if (email === null || !(await concernsNotices(db, account.id))) return false;
  const choices = await readChoices(db, account.id);
  return html`<h2 id="notices">Mail notices</h2>
${isSaved && html`<p class="notice" role="status">Your settings are saved.</p>`}
<form method="post" action="/account/notices">
<input type="hidden" name="${formTokenField}" value="${token}">
<fieldset>
<legend class="soft">Send mail to ${email} when:</legend>
${noticeKinds.map(
  (kind) =>
    html`<label class="check"><input type="checkbox" name="${kind}" value="on"${choices[kind] && html` checked`}> <span>${noticeEvents[kind]}</span></label>`,
)}
</fieldset>
<button class="secondary" type="submit">Save</button>
</form>`;
}

/**
 * @param contextOf the context of the account page's form tokens
 * @param findOwner finds the account of the browser's session
 */
export function registerAccountNotices(
  app: FastifyInstance,
  { db, formTokens }: { db: Database; formTokens: FormTokens },
  contextOf: (secret: string) => string,
  findOwner: (request: FastifyRequest, reply: FastifyReply) => Promise<PageOwner | undefined>,
): void {
  app.post('/account/notices', async (request, reply) => {
    const owner = await findOwner(request, reply);
    reply.header('cache-control', 'no-store');
    if (owner === undefined) return reply.redirect('/account', 303);
    formTokens.check(request, contextOf(owner.secret));
    const form = request.body as Record<string, unknown>;
    const choices = Object.fromEntries(noticeKinds.map((kind) => [kind, form[kind] === 'on']));
    await db.transaction().execute((tx) => changeChoices(tx, owner.account.id, choices as NoticeChoices));
    return reply.redirect('/account?notices=saved#notices', 303);
  });
}

/** Registers the page behind the links in notices. The token is the permission, so it needs no session. */
export function registerUnsubscribe(app: FastifyInstance, db: Database, tokens: UnsubscribeTokens): void {
  void app.register(async (scope) => {
    // Mail programs may send forms of either type (RFC 8058 section 3.2).
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, _body, done) => done(null, null));

    // Reading changes nothing: programs that check the links of mails follow them.
    scope.get(unsubscribePath, async (request, reply) => {
      const named = tokens.read((request.query as Record<string, unknown>).token);
      if (named === undefined) return sendPage(reply, 404, 'This link is not valid', invalidContent);
      return sendPage(reply, 200, 'Stop these mails', askContent(noticeEvents[named.kind]));
    });

    scope.post(unsubscribePath, { bodyLimit: bodyBytesMax }, async (request, reply) => {
      const named = tokens.read((request.query as Record<string, unknown>).token);
      if (named === undefined) return sendPage(reply, 404, 'This link is not valid', invalidContent);
      const { accountId, kind } = named;
      await db.transaction().execute((tx) => changeChoices(tx, accountId, { [kind]: false }));
      request.log.info({ account: accountId, kind }, 'notices stopped by a link');
      return sendPage(reply, 200, 'Mails stopped', stoppedContent(noticeEvents[kind]));
    });
  });
}

/** The form is sent to the URL of the page, which has the token. */
function askContent(event: string): Html {
  return html`<h1>Stop these mails?</h1>
<p>You will get no more mail when ${event}.</p>
<form method="post">
<input type="hidden" name="List-Unsubscribe" value="One-Click">
<button type="submit">Stop these mails</button>
</form>
<p><a href="/account#notices">All settings</a></p>`;
}

function stoppedContent(event: string): Html {
  return html`<h1>Mails stopped</h1>
<p>You get no more mail when ${event}.</p>
<p><a href="/account#notices">Change your settings</a></p>`;
}

const invalidContent = html`<h1>This link is not valid</h1>
<p>It may be incomplete. Copy the whole link from the mail, or change the settings on your account page.</p>
<p><a href="/account#notices">Your account</a></p>`;
