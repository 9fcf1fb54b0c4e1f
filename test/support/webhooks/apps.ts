/**
 * Apps that publish and subscribe, for tests.
 */

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Account } from '../../../src/accounts/account.ts';
import type { Database } from '../../../src/database/database.ts';
import { type ApiResponse, requester } from '../clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../clients/oauth.ts';
import { patienceMs } from '../patience.ts';
import type { ReachableServer, TestServer } from '../servers/server.ts';

export type Request = ReturnType<typeof requester>;

/** Creates a machine client of the operator, with a token that may publish. */
export async function createPublisher(server: ReachableServer): Promise<Request> {
  const client = await createTestClient(server, { scopes: ['write:events'] });
  const { accessToken } = await mintAccessToken(server, { client, scopes: ['write:events'] });
  return requester(server, accessToken);
}

export interface App {
  account: Pick<Account, 'id'>;
  clientId: string;
  grantId: string;
  accessToken: string;
  request: Request;
}

export const appScopes = ['read:posts', 'write:posts', 'read:profile', 'read:webhooks', 'write:webhooks'];

/** Creates an app that acts for a user. */
export async function createApp(
  server: ReachableServer,
  options: { scopes?: string[]; account?: Pick<Account, 'id'> } = {},
): Promise<App> {
  const scopes = options.scopes ?? appScopes;
  const account = options.account ?? (await createTestAccount(server));
  const client = await createTestClient(server, { scopes });
  const { accessToken, grantId } = await mintAccessToken(server, { account, client, scopes });
  return {
    account,
    clientId: client.id,
    grantId: grantId as string,
    accessToken,
    request: requester(server, accessToken),
  };
}

/** Creates a client that may subscribe for itself. */
export async function createSubscribingClient(server: ReachableServer) {
  const scopes = ['read:posts', 'read:webhooks', 'write:webhooks'];
  const client = await createTestClient(server, { scopes, maySubscribe: true });
  const { accessToken } = await mintAccessToken(server, { client, scopes });
  return { client, request: requester(server, accessToken) };
}

// biome-ignore lint/suspicious/noExplicitAny: tests inspect any response
export async function subscribe(app: { request: Request }, fields: Record<string, unknown>): Promise<any> {
  const created = await app.request('POST', '/subscriptions', { json: { kinds: ['*'], ...fields } });
  if (created.status !== 201) throw new Error(`subscribing gave ${created.status}: ${created.text}`);
  return created.body;
}

/** Returns a body of the kind `push`. */
export function pushBody(mark: unknown = randomUUID()): Record<string, unknown> {
  return { ref: `refs/heads/${mark}`, commits: [], repository: { name: 'example' } };
}

export async function publish(
  publisher: Request,
  account: Pick<Account, 'id'>,
  marks: unknown[],
): Promise<ApiResponse> {
  const events = marks.map((mark) => ({ kind: 'push', account: account.id, body: pushBody(mark) }));
  const answer = await publisher('POST', '/events', { json: events });
  if (answer.status !== 202) throw new Error(`publishing gave ${answer.status}: ${answer.text}`);
  return answer;
}

/** Waits until fan-out has processed every published event. */
export async function fannedOut({ db }: Pick<TestServer, 'db'>): Promise<void> {
  await until(
    async () => (await sql`select from outbox limit 1`.execute(db)).rows.length,
    (count) => count === 0,
  );
}

/** The pause of a wait grows with the time waited, so that a long wait takes little processor time from others. */
const pauseMinMs = 25;
const pauseMaxMs = 200;

/**
 * Repeats a request until its result is the wanted one.
 * @throws Error with the last result on timeout
 */
export async function until<T>(ask: () => Promise<T>, isWanted: (value: T) => boolean): Promise<T> {
  const begin = performance.now();
  for (;;) {
    const value = await ask();
    if (isWanted(value)) return value;
    const waitedMs = performance.now() - begin;
    if (waitedMs > patienceMs) throw new Error(`still not as wanted: ${JSON.stringify(value)}`);
    await sleep(Math.min(Math.max(waitedMs / 10, pauseMinMs), pauseMaxMs));
  }
}

/** Subscribes a user's app to all kinds. The lanes are paused, so nothing is sent. */
export async function addPaused(db: Database, app: App, count: number): Promise<void> {
  await sql`
    with given as (
      select gen_random_uuid() as id, ('x' || substr(md5(random()::text), 1, 13))::bit(52)::bigint as lane
      from generate_series(1, ${count}::int)
    ),
    subscription as (
      insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
      select id, lane, 'grant', ${app.grantId}, ${app.account.id}, ${app.clientId}, 'http://127.0.0.1:9/', '{*}',
        'timestamp', ''
      from given
      returning lane
    ),
    head as (insert into lanes (id) select lane from subscription)
    insert into lane_progress (lane, paused_until) select lane, now() + interval '1 day' from subscription`.execute(
    db,
  );
}
