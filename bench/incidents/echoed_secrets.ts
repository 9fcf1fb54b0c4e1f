/**
 * A subscriber that makes the search for its secrets in its responses slow: both repeat one letter. By https, as all subscribers that an operator
 * does not allow otherwise: without TLS, more responses can arrive in one turn of the event loop.
 */

import { once } from 'node:events';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { serverCertificate, serverKey } from '../../test/support/network/certificates.ts';
import { withAuthority } from './authority.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident } from './row.ts';
import { finish, measureAlone, measureIncident, type Stage, withStage } from './stage.ts';

const subscriptions = 5;
/** Events for each of the subscriptions. */
const backlog = 100;
/** As many as a subscription may have, of the maximum size. The quotation mark gives each another form in JSON. */
const headers = Object.fromEntries(
  Array.from({ length: 10 }, (_, index) => [
    `x-own-${index}`,
    `${'a'.repeat(512 - index)}"${'a'.repeat(511 + index)}`,
  ]),
);

export const echoedSecrets: Incident = (size) => withAuthority(() => measure(size));

const measure: Incident = (size) =>
  withStage(size, async (stage) => {
    const tls = { cert: serverCertificate, key: serverKey };
    const server = createServer({ ...tls, keepAliveTimeout: 60_000 }, (request, response) => {
      for (let index = 0; index < 14; index += 1) response.setHeader(`x-${index}`, 'a'.repeat(1_000));
      request.resume().on('end', () => response.end('a'.repeat(16_384)));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    try {
      const [member] = (await makeCrowd(stage.bench, {
        users: 1,
        subscriptionsOfEach: 0,
        urlOf: () => '',
      })) as [CrowdMember];
      for (let index = 0; index < subscriptions; index += 1)
        await subscribe(stage, member, `https://127.0.0.1:${port}/hooks`);
      await measureAlone(stage);
      await measureIncident(stage, () => stage.publish(member.accountId, backlog));
      return [await finish(stage, 'echoed-secrets', 250)];
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });

async function subscribe({ bench, tokenOf }: Stage, member: CrowdMember, url: string): Promise<void> {
  const response = await fetch(`${bench.baseUrl}/subscriptions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${await tokenOf(member)}`, 'content-type': 'application/json' },
    body: JSON.stringify({ url, kinds: ['push'], headers }),
  });
  if (response.status !== 201)
    throw new Error(`subscribing gave ${response.status}: ${await response.text()}`);
}
