/**
 * Subscribers that fill TLS records with messages of the handshake, which OpenSSL processes without telling the program: requests to repeat the
 * handshake in TLS 1.2, and tickets in TLS 1.3. As a program of its own (`node tls_floods.ts`), it is their server.
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { serverCertificate, serverKey } from '../../test/support/network/certificates.ts';
import {
  fullRecord,
  helloRequestMessage,
  startInjector,
  ticketMessage,
} from '../../test/support/network/tls_injector.ts';
import { withAuthority } from './authority.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident, Row, Size } from './row.ts';
import { finish, measureAlone, measureIncident, withStage } from './stage.ts';

const subscriptions = 20;
/** Events for each of the subscriptions. */
const backlog = 50;
const records = 64;

type Version = 'TLSv1.2' | 'TLSv1.3';

/** Hosts of TLS 1.3 send tickets when they have a request, so their certificate must be trusted. */
export const tlsFloods: Incident = (size) =>
  withAuthority(async () => [await measure(size, 'TLSv1.2'), await measure(size, 'TLSv1.3')]);

function measure(size: Size, version: Version): Promise<Row> {
  return withStage(size, async (stage) => {
    const { child, port } = await startServer(version);
    try {
      const [member] = (await makeCrowd(stage.bench, {
        users: 1,
        subscriptionsOfEach: subscriptions,
        urlOf: () => `https://127.0.0.1:${port}/hooks`,
      })) as [CrowdMember];
      await measureAlone(stage);
      await measureIncident(stage, () => stage.publish(member.accountId, backlog), stage.size.of(20, 60));
      return await finish(stage, `tls-floods ${version}`, 250);
    } finally {
      child.kill();
    }
  });
}

async function startServer(version: Version): Promise<{ child: ChildProcess; port: number }> {
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), version], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const [port] = (await once(child, 'message')) as [number];
  return { child, port };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const version = process.argv[2] as Version;
  const content = fullRecord(version === 'TLSv1.2' ? helloRequestMessage : ticketMessage);
  const { port } = await startInjector({
    chain: { cert: serverCertificate, key: serverKey },
    version,
    inject: (client, encrypt) => {
      client.write(Buffer.concat(Array.from({ length: records }, () => encrypt(content))));
    },
  });
  process.send?.(port);
  process.once('disconnect', () => process.exit());
}
