/**
 * The account page of a user with very many apps, grants and agents, or with apps that chose long texts. One thread renders the pages of
 * everybody, and this page goes before the API, so it is short whatever a user has, and links lead to the rest.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type KyselyPlugin, sql } from 'kysely';
import { readAttempts } from '../../src/connections/connection_store.ts';
import { newId } from '../../src/crypto/ids.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  type TestAccount,
} from '../support/clients/oauth.ts';
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';
import { addAgentSubscription } from '../support/webhooks/agent_subscriptions.ts';

const server = await startTestServer({ after });
const { db } = server;
const pageBytesMax = 100_000;
const apps = 5_000;

/** Connects new apps, with so many grants each. @returns their ids */
async function connectApps(account: TestAccount, ids: readonly string[], grants = 1, name = 'An app') {
  await sql`
    insert into clients (id, name) select id, ${name} from unnest(${[...ids]}::text[]) as id`.execute(db);
  await sql`
    insert into grants (id, account_id, client_id, scopes)
    select gen_random_uuid(), ${account.id}, id, '{openid,read:posts,write:posts}'
    from unnest(${[...ids]}::text[]) as id, generate_series(1, ${grants}::int)`.execute(db);
  return ids;
}

function newApps(count: number): string[] {
  return Array.from({ length: count }, () => newId());
}

async function open({ email, password }: TestAccount): Promise<{ browser: TestBrowser; page: Page }> {
  const browser = new TestBrowser(server.baseUrl);
  const form = await browser.open(`${server.baseUrl}/account`);
  const page = await browser.submit(form, { email, password });
  checkSize(page);
  return { browser, page };
}

function checkSize({ text, url }: Page): void {
  const bytes = Buffer.byteLength(text);
  assert.ok(bytes <= pageBytesMax, `${url} has ${bytes} bytes`);
}

/** Values of a hidden field, one for each form. */
function valuesOf({ text }: Page, field: string): string[] {
  return formsOf(text).flatMap(({ fields }) => fields[field] ?? []);
}

function linkOf({ text }: Page, words: string): string | undefined {
  const path = new RegExp(`<a href="([^"]+)">${words}</a>`).exec(text)?.[1];
  return path === undefined ? undefined : server.baseUrl + path.replaceAll('&amp;', '&');
}

/** Follows the links and checks each page. */
async function follow(browser: TestBrowser, first: Page, words: string): Promise<Page[]> {
  const pages = [first];
  for (let next = linkOf(first, words); next !== undefined; ) {
    const page = await browser.open(next);
    checkSize(page);
    pages.push(page);
    next = linkOf(page, words);
  }
  return pages;
}

const crowded = await createTestAccount(server);
const crowd = await connectApps(crowded, newApps(apps));

test('links lead through short pages to each of thousands of apps, once', async () => {
  const { browser, page } = await open(crowded);
  const pages = await follow(browser, page, 'More apps');
  const shown = pages.flatMap((each) => valuesOf(each, 'client_id'));
  assert.equal(shown.length, apps);
  assert.deepEqual(shown.toSorted(), [...crowd].sort());
});

test('attack: the page of a user with thousands of apps reads few rows', async () => {
  const deep = await createTestAccount(server);
  await connectApps(deep, newApps(100), 100);
  await sql`analyze`.execute(db);
  // Of 25 apps, with 100 grants each.
  for (const [account, rowsMax] of [[crowded, 600] as const, [deep, 3_500] as const]) {
    const { browser, page } = await open(account);
    const urls = [page.url, linkOf(page, 'More apps') ?? ''];
    for (const mode of planModes) {
      for (const url of urls) {
        const statements = await captureStatements(mode, async () => browser.open(url));
        const rows = rowsOf(statements);
        assert.ok(rows > 0 && rows < rowsMax, `${url}: ${rows} rows (${mode})`);
      }
    }
  }
});

test('an app is disconnected from its page of the list, and the user comes back to that page', async () => {
  const { browser, page: first } = await open(crowded);
  const second = await browser.open(linkOf(first, 'More apps') ?? '');
  const third = await browser.open(linkOf(second, 'More apps') ?? '');
  const connected = (await follow(browser, first, 'More apps')).flatMap((page) =>
    valuesOf(page, 'client_id'),
  );
  const [gone = '', ...others] = valuesOf(third, 'client_id');
  const index = formsOf(third.text).findIndex(({ fields }) => fields.client_id === gone);
  const after = await browser.submit(third, {}, index);
  assert.match(after.text, /is disconnected/);
  assert.deepEqual(valuesOf(after, 'client_id').slice(0, others.length), others);
  // No other app is left out from there on.
  const left = [first, second, ...(await follow(browser, after, 'More apps'))];
  assert.deepEqual(
    left.flatMap((page) => valuesOf(page, 'client_id')),
    connected.filter((id) => id !== gone),
  );
  const { rows } = await sql`
    select from grants where client_id = ${gone} and withdrawn_at is null`.execute(db);
  assert.equal(rows.length, 0);
});

test('whoever disconnects the last app of the last page sees the first page', async () => {
  const account = await createTestAccount(server);
  await connectApps(account, newApps(26));
  const { browser, page } = await open(account);
  const second = await browser.open(linkOf(page, 'More apps') ?? '');
  assert.equal(valuesOf(second, 'client_id').length, 1);
  const after = await browser.submit(second, {});
  assert.match(after.text, /is disconnected/);
  assert.deepEqual(valuesOf(after, 'client_id'), valuesOf(page, 'client_id'));
  assert.equal(linkOf(after, 'More apps'), undefined);
});

test('links lead to all of two hundred agents with long arguments, and each can be stopped', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  await connectApps(account, newApps(30));
  const grantId = newId();
  await sql`
    insert into grants (id, account_id, client_id, scopes)
    values (${grantId}, ${account.id}, ${client.id}, '{read:posts}')`.execute(db);
  const limits = { subscriptionsPerGrant: 1_000, subscriptionsPerAccount: 1_000 };
  const ids: string[] = [];
  for (let index = 0; index < 200; index += 1) {
    const text = `${index}`.padEnd(4_000, '"');
    const fields = {
      ...{ mode: index % 2 === 0 ? ('webhook' as const) : ('poll' as const) },
      ...{ arguments: JSON.stringify({ ref: text.slice(0, 2_000) }), scope: 'read:posts' },
      ...(index % 2 === 0 ? {} : { url: null }),
    };
    const app = { grantId, clientId: client.id, account };
    const made = await addAgentSubscription(db, app, fields, limits);
    ids.push(made?.subscription.id ?? '');
  }
  const { browser, page } = await open(account);
  const list = (await follow(browser, page, 'More apps')).find((each) => linkOf(each, 'Show all'));
  assert.ok(list);
  assert.deepEqual(valuesOf(list, 'subscription'), ids.slice(0, 3));
  const alone = await browser.open(linkOf(list, 'Show all') ?? '');
  checkSize(alone);
  const pages = await follow(browser, alone, 'Next');
  assert.deepEqual(
    pages.flatMap((each) => valuesOf(each, 'subscription')),
    ids,
  );
  const second = pages[1] as Page;
  const after = await browser.submit(second, {});
  assert.equal(new URL(after.url).search, new URL(second.url).search);
  const [stopped, ...left] = valuesOf(second, 'subscription');
  assert.deepEqual(valuesOf(after, 'subscription').slice(0, left.length), left);
  const { rows } = await sql<{ state: string }>`
    select state from subscriptions where id = ${stopped}`.execute(db);
  assert.deepEqual(rows, [{ state: 'ended' }]);
});

test('attack: apps with the longest names and ids make shorter pages, not larger ones', async () => {
  const account = await createTestAccount(server);
  const ids = newApps(40).map((id) => `https://app.example/${id}?`.padEnd(2_048, '&'));
  await connectApps(account, ids, 1, '"'.repeat(5_000));
  const { browser, page } = await open(account);
  const pages = await follow(browser, page, 'More apps');
  assert.deepEqual(pages.flatMap((each) => valuesOf(each, 'client_id')).toSorted(), ids.toSorted());
});

test('attack: a grant of another user shows nothing of theirs', async () => {
  const [mine, theirs] = [await createTestAccount(server), await createTestAccount(server)];
  const own = await connectApps(mine, newApps(1));
  await connectApps(theirs, newApps(1));
  const { browser } = await open(mine);
  const { rows } = await sql<{ id: string }>`
    select id from grants where account_id = ${theirs.id}`.execute(db);
  for (const name of ['app', 'from', 'to', 'after']) {
    for (const value of [rows[0]?.id, newId(), 'no id', '%00', '']) {
      const page = await browser.open(`${server.baseUrl}/account?${name}=${value}`);
      assert.equal(page.response.status, 200);
      assert.deepEqual(valuesOf(page, 'client_id'), [...own]);
    }
  }
});

test('attack: of failed connections with many long steps, only what the page shows is read', async () => {
  const account = await createTestAccount(server);
  const step = {
    name: 'authorize',
    outcome: 'refused',
    error: 'invalid_scope',
    explanation: 'x'.repeat(600),
  };
  const steps = Array.from({ length: 40 }, (_none, index) => ({
    ...step,
    at: new Date(Date.now() + index).toISOString(),
    request: `request-${index}`,
  }));
  const ids = newApps(60);
  await sql`insert into clients (id, name) select id, 'Failed' from unnest(${ids}::text[]) as id`.execute(db);
  await sql`
    insert into connections (id, started_at, updated_at, client_id, is_known, account_id, outcome, keys, request_ids, source, steps)
    select gen_random_uuid(), now(), now(), id, true, ${account.id}, 'refused', '{}', '{}', '', ${JSON.stringify(steps)}::jsonb
    from unnest(${ids}::text[]) as id`.execute(db);
  let bytes = 0;
  const plugin: KyselyPlugin = {
    transformQuery: ({ node }) => node,
    async transformResult({ result }) {
      bytes += JSON.stringify(result.rows).length;
      return result;
    },
  };
  const attempts = await readAttempts(db.withPlugin(plugin), account.id, 50);
  assert.equal(attempts.length, 50);
  assert.ok(bytes < 20_000, `${bytes} bytes`);
  const { page } = await open(account);
  assert.equal(page.text.match(/could not finish connecting/g)?.length, 5);
  assert.ok(page.text.includes('<code>request-39</code>'));
});

test('attack: pages of sign-in and consent do not grow with what an app sends', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const url = (more: Record<string, string>) =>
    authorizationUrl(server, client, {
      ...{ scope: 'read:posts', code_challenge: createPkce().challenge, code_challenge_method: 'S256' },
      ...more,
    });
  const browser = new TestBrowser(server.baseUrl);
  const login = await browser.open(url({ login_hint: '"'.repeat(4_000) }));
  assert.ok(login.text.includes('name="password"'));
  assert.ok(login.text.length < 5_000, `${login.text.length} characters`);
  const refused = await browser.submit(login, { action: 'login', email: '"'.repeat(4_000), password: 'x' });
  assert.ok(refused.text.length < 5_000, `${refused.text.length} characters`);
  const { email, password } = account;
  await browser.submit(refused, { action: 'login', email, password });
  const api = `&resource=${encodeURIComponent(`${server.baseUrl}/mcp`)}`;
  const consent = await browser.open(url({}) + api.repeat(200));
  assert.match(consent.text, /value="allow"/);
  assert.equal(consent.text.match(/tools for AI agents/g)?.length, 1);
});
