/** Subscribers that accept connections and never respond. */

import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { createTestClient } from '../../test/support/clients/oauth.ts';
import { type Bench, percentile } from '../deliveries/support.ts';
import { monotonicMs } from '../support/measure.ts';
import { type CrowdMember, makeCrowd, scopes } from './crowd.ts';
import type { Check, Incident, Row, Size } from './row.ts';
import { finish, measureAlone, measureIncident, type Stage, type StageOptions, withStage } from './stage.ts';

const hosts = 900;
/** Events for each hanging subscription, so that attempts start for some minutes. */
const backlog = 5;

/**
 * An app with subscriptions to hanging hosts, after a restart of the server. The stranger belongs to another app first, then to the
 * same one. Its host is unknown after the restart until it accepts a delivery.
 */
export const hangingHosts: Incident = async (size) => {
  let app: string | undefined;
  const sameApp = async (bench: Bench) => {
    app = (await createTestClient(bench, { scopes })).id;
    return app;
  };
  return [
    await measureHosts(size, 'hanging-hosts', () => undefined),
    await measureHosts(size, 'hanging-hosts, same app', () => app, { strangerClientId: sameApp }),
  ];
};

function measureHosts(
  size: Size,
  name: string,
  appOf: () => string | undefined,
  options: StageOptions = {},
): Promise<Row> {
  return withStage(
    size,
    async (stage) => {
      const hanging = await startHanging();
      // The whole of 127.0.0.0/8 is loopback: each address is a host of its own.
      const urlOf = (index: number) => `http://127.1.${index >> 8}.${index & 255}:${hanging.port}/hooks`;
      const clientId = appOf();
      const [member] = (await makeCrowd(stage.bench, {
        users: 1,
        subscriptionsOfEach: hosts,
        urlOf,
        ...(clientId === undefined ? {} : { clientId }),
      })) as [CrowdMember];
      const restartedAt = await measureRestart(stage, member);
      const row = await finish(stage, name, null);
      hanging.close();
      row.checks.push(...(await checkHost(stage, restartedAt)));
      return row;
    },
    options,
  );
}

/** Measures the stranger alone, and then while the server sends to hanging hosts after a restart. @returns when it restarted */
async function measureRestart(stage: Stage, { accountId }: CrowdMember): Promise<number> {
  await measureAlone(stage);
  await stage.publish(accountId, backlog);
  await sleep(2_000);
  await stage.stranger.pause();
  await stage.restart();
  const restartedAt = monotonicMs();
  stage.stranger.resume();
  await measureIncident(stage, async () => {}, stage.size.of(20, 60));
  return restartedAt;
}

/** A second for the first deliveries, until the host is known; 250 ms from then on. */
async function checkHost({ stranger }: Stage, restartedAt: number): Promise<Check[]> {
  const arrivals = [...(await stranger.arrivals())].filter(([mark]) => mark >= restartedAt);
  const knownAt = Math.min(...arrivals.map(([, at]) => at));
  const longest = (some: [number, number][]) =>
    percentile(
      some.map(([mark, at]) => at - mark),
      1,
    );
  return [
    {
      what: 'max, unknown host, ms',
      value: longest(arrivals.filter(([mark]) => mark < knownAt)),
      max: 1_000,
    },
    { what: 'max, known host, ms', value: longest(arrivals.filter(([mark]) => mark >= knownAt)), max: 250 },
  ];
}

/** Many names on the stranger's address hang, as behind one CDN. After a restart, the server knows none of them. */
export const oneAddress: Incident = (size) =>
  withStage(
    size,
    async (stage) => {
      const port = new URL(stage.strangerUrl).port;
      const [member] = (await makeCrowd(stage.bench, {
        users: 1,
        subscriptionsOfEach: hosts,
        urlOf: (index) => `http://h${index}.localhost:${port}/hang`,
      })) as [CrowdMember];
      await measureRestart(stage, member);
      const { rows } = await sql<{ count: number }>`
        select count(*)::int as count from attempts a join subscriptions s on s.lane = a.lane
        where s.account_id = ${stage.stranger.accountId} and a.number = 1 and a.error = 'timeout'`.execute(
        stage.bench.db,
      );
      const timeouts = {
        what: 'first attempts of the stranger with a timeout',
        value: rows[0]?.count ?? 0,
        max: 0,
      };
      return [await finish(stage, 'one-address', 1_000, [timeouts])];
    },
    { strangerUrl: (port) => `http://healthy.localhost:${port}/hooks` },
  );

/** Accepts connections on all addresses and never responds. */
async function startHanging(): Promise<{ port: number; close: () => void }> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => sockets.delete(socket));
    socket.resume();
  });
  server.listen(0, '0.0.0.0', 4_096);
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    close: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}
