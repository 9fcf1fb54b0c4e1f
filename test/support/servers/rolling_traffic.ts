/**
 * Traffic during an upgrade: people whose apps subscribe, events by HTTP and by SQL, changes of resources, tokens, subscriptions that
 * come and go. It records what was acknowledged, so that a test can say what must have arrived.
 */

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import {
  authorize,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  postForm,
} from '../clients/oauth.ts';
import { appScopes, pushBody } from '../webhooks/apps.ts';
import type { Fleet } from './fleet.ts';
import type { ReachableServer } from './server.ts';

type Send = ReturnType<Fleet['sender']>;

export interface Member {
  path: string;
  accountId: string;
  grantId: string;
  accessToken: string;
  send: Send;
  subscriptionId: string;
  lane: string;
}

export interface Traffic {
  members: Member[];
  /** Events that a node acknowledged, by mark, with the path of the member. */
  acknowledged: Map<string, string>;
  /** Numbers of requests by what they do. */
  counts: Record<string, number>;
  /** Why the traffic ended; null while it continues. */
  failure: Error | null;
  /** Access token of the operator's application. */
  operatorToken: string;
  join: (name: string, fields?: Record<string, unknown>) => Promise<Member>;
  publish: (member: Member, count: number) => Promise<string[]>;
  /** Starts the traffic. @returns a function that ends it */
  begin: () => () => Promise<void>;
}

/** @param url of the subscriber */
export async function prepareTraffic(server: ReachableServer, fleet: Fleet, url: string): Promise<Traffic> {
  const { db } = server;
  // The test may take longer than the 15 minutes of a token.
  const claims = { exp: Math.floor(Date.now() / 1_000) + 14_400 };
  const operatorScopes = ['write:events', 'read:accounts', 'write:accounts'];
  const machine = await createTestClient(server, { scopes: operatorScopes });
  const { accessToken: operatorToken } = await mintAccessToken(server, {
    client: machine,
    scopes: operatorScopes,
    claims,
  });
  const operator = fleet.sender(operatorToken);
  const forAll = await createTestClient(server, {
    scopes: ['read:posts', 'read:webhooks', 'write:webhooks'],
    maySubscribe: true,
  });
  const hubToken = await mintAccessToken(server, { client: forAll, scopes: forAll.scopes, claims });
  const subscribe = async (send: Send, fields: Record<string, unknown>) => {
    const created = await send('POST', '/subscriptions', { json: { kinds: ['push'], ...fields } });
    assert.equal(created.status, 201, created.text);
    return created.body.id as string;
  };
  await subscribe(fleet.sender(hubToken.accessToken), { url: `${url}/hub` });
  const acknowledged = new Map<string, string>();
  const counts: Record<string, number> = {};
  const count = (what: string) => {
    counts[what] = (counts[what] ?? 0) + 1;
  };
  let marks = 0;
  const nextMark = () => {
    marks += 1;
    return `upgrade-${marks}`;
  };

  const join = async (name: string, fields: Record<string, unknown> = {}): Promise<Member> => {
    const account = await createTestAccount(server, { email: `${name}@upgrade.example` });
    // The operator's application may withdraw grants of its own users only.
    await sql`update accounts set external_id = ${name} where id = ${account.id}`.execute(db);
    const client = await createTestClient(server, { scopes: appScopes });
    const { accessToken, grantId } = await mintAccessToken(server, {
      account,
      client,
      scopes: appScopes,
      claims,
    });
    await mintAccessToken(server, { account, client: forAll, scopes: ['read:posts'] });
    const send = fleet.sender(accessToken);
    const subscriptionId = await subscribe(send, { url: `${url}/${name}`, ...fields });
    const { rows } = await sql<{ lane: string }>`
      select lane from subscriptions where id = ${subscriptionId}`.execute(db);
    const lane = rows[0]?.lane ?? '';
    return {
      path: `/${name}`,
      accountId: account.id,
      grantId: grantId ?? '',
      accessToken,
      send,
      subscriptionId,
      lane,
    };
  };
  const members: Member[] = [];
  for (let number = 1; number <= 6; number += 1) members.push(await join(`member-${number}`));

  const publish = async (member: Member, size: number) => {
    const list = Array.from({ length: size }, nextMark);
    const json = list.map((mark) => ({
      // A chosen id makes it safe to repeat.
      id: mark,
      kind: 'push',
      account: member.accountId,
      body: pushBody(mark),
    }));
    const { status, text } = await operator('POST', '/events', { json });
    assert.equal(status, 202, text);
    count('publish');
    for (const mark of list) acknowledged.set(mark, member.path);
    return list;
  };
  const person = await createTestAccount(server, { email: 'person@upgrade.example' });
  const app = await createTestClient(server);

  let isOver = false;
  const loop = async (pauseMs: number, work: (turn: number) => Promise<void>) => {
    for (let turn = 0; !isOver; turn += 1) {
      await work(turn);
      await sleep(pauseMs);
    }
  };
  const memberAt = (turn: number) => members[turn % members.length] as Member;
  const publishBySql = async (turn: number) => {
    const member = memberAt(turn);
    const mark = nextMark();
    await sql`
      select publish('push', ${member.accountId}::text, ${JSON.stringify(pushBody(mark))}::jsonb, ${mark}::text)`.execute(
      db,
    );
    count('publish by SQL');
    acknowledged.set(mark, member.path);
  };
  const changeResource = async (turn: number) => {
    const { send } = memberAt(turn);
    const headers = { 'idempotency-key': `article-${turn}` };
    const created = await send('POST', '/articles', { json: { title: `Article ${turn}` }, headers });
    assert.equal(created.status, 201, created.text);
    const path = `/articles/${created.body.id}`;
    const changed = await send('PATCH', path, {
      raw: JSON.stringify({ title: `Changed ${turn}` }),
      headers: { 'content-type': 'application/merge-patch+json' },
    });
    assert.equal(changed.status, 200, changed.text);
    const read = await send('GET', path);
    assert.equal(read.body.title, `Changed ${turn}`, read.text);
    count('change a resource');
  };
  const renewTokens = async (session: { refreshToken: string }) => {
    const form = { grant_type: 'refresh_token', refresh_token: session.refreshToken };
    const { status, body } = await fleet.reach('POST /oauth/token', (baseUrl) =>
      postForm({ baseUrl }, '/oauth/token', app, form),
    );
    assert.equal(status, 200, JSON.stringify(body));
    session.refreshToken = String(body.refresh_token);
    const read = await fleet.sender(String(body.access_token))('GET', '/articles');
    assert.equal(read.status, 200, read.text);
    count('refresh a token');
  };
  const changeSubscriptions = async (turn: number) => {
    const { send } = memberAt(turn);
    const headers = { 'idempotency-key': `subscription-${turn}` };
    const json = { url: `${url}/other-${turn}`, kinds: ['invoice.paid'] };
    const created = await send('POST', '/subscriptions', { json, headers });
    assert.equal(created.status, 201, created.text);
    const path = `/subscriptions/${created.body.id}`;
    const changed = await send('PATCH', path, { json: { description: `turn ${turn}` } });
    assert.equal(changed.status, 200, changed.text);
    const ended = await send('DELETE', path);
    assert.ok(ended.status === 204 || ended.status === 404, ended.text);
    count('change subscriptions');
  };

  const begin = () => {
    isOver = false;
    const work = async () => {
      const first = fleet.running[0] as { baseUrl: string };
      const signIn = { account: person, client: app, scopes: ['openid', 'offline_access', 'read:posts'] };
      const session = await authorize(first, signIn);
      await Promise.all([
        loop(60, async (turn) => void (await publish(memberAt(turn), 1 + (turn % 5)))),
        loop(100, publishBySql),
        loop(100, changeResource),
        loop(100, () => renewTokens(session)),
        loop(100, changeSubscriptions),
      ]);
    };
    const working = work();
    working.catch((error: Error) => {
      traffic.failure = error;
    });
    return async () => {
      isOver = true;
      await working;
    };
  };
  const traffic: Traffic = {
    members,
    acknowledged,
    counts,
    failure: null,
    operatorToken,
    join,
    publish,
    begin,
  };
  return traffic;
}
