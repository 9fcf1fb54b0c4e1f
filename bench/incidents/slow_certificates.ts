/**
 * Subscribers whose certificates are slow to verify: some ninety of them, on OpenSSL's slowest curve, which nobody trusts. As a program of its
 * own (`node slow_certificates.ts`), it is their server.
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { makeLongChain } from '../../test/support/network/certificate_chain.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident } from './row.ts';
import { finish, measureAlone, measureIncident, withStage } from './stage.ts';

const hosts = 900;
/** Events for each of the subscriptions. */
const backlog = 5;

export const slowCertificates: Incident = (size) =>
  withStage(size, async (stage) => {
    const { child, port } = await startServer();
    try {
      // The whole of 127.0.0.0/8 is loopback: each address is a host of its own.
      const [member] = (await makeCrowd(stage.bench, {
        users: 1,
        subscriptionsOfEach: hosts,
        urlOf: (index) => `https://127.1.${index >> 8}.${index & 255}:${port}/hooks`,
      })) as [CrowdMember];
      await measureAlone(stage);
      await measureIncident(stage, () => stage.publish(member.accountId, backlog), stage.size.of(20, 60));
      return [await finish(stage, 'slow-certificates', 250)];
    } finally {
      child.kill();
    }
  });

async function startServer(): Promise<{ child: ChildProcess; port: number }> {
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url)], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const [port] = (await once(child, 'message')) as [number];
  return { child, port };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const server = createServer(makeLongChain(), (socket) => socket.on('error', () => {}));
  server.on('tlsClientError', () => {});
  await once(server.listen(0, '0.0.0.0', 4_096), 'listening');
  process.send?.((server.address() as AddressInfo).port);
  process.once('disconnect', () => process.exit());
}
