/** A kind that is removed from a subscription with a backlog of that kind. */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident } from './row.ts';
import { finish, measureAlone, measureIncident, type Stage, waitUntil, withStage } from './stage.ts';

const backlog = 400;
const invoice = { invoice: { id: 'inv_1', amount: 1, currency: 'EUR' } };

/** No delivery of the kind starts after the response to the PATCH. */
export const patchKind: Incident = (size) =>
  withStage(size, async (stage) => {
    const { bench, othersUrl, publish } = stage;
    const [member] = (await makeCrowd(bench, {
      users: 1,
      subscriptionsOfEach: 1,
      urlOf: () => othersUrl,
      rateLimit: 20,
      kinds: ['push', 'invoice.paid'],
    })) as [CrowdMember];
    await measureAlone(stage);
    let late = Number.NaN;
    let kept = 0;
    await measureIncident(stage, async () => {
      await publish(member.accountId, backlog);
      await publish(member.accountId, 5, 'invoice.paid', invoice);
      await waitUntil(10, async () => (await countStarted(stage, member, 'push', 0)) >= 20);
      const changedAt = await removeKind(stage, member);
      await waitUntil(15, async () => (await countStarted(stage, member, 'invoice.paid', changedAt)) === 5);
      // The whole backlog would take twenty seconds.
      await sleep(size.of(5_000, 20_000));
      late = await countStarted(stage, member, 'push', changedAt);
      kept = await countStarted(stage, member, 'invoice.paid', changedAt);
    });
    return [
      await finish(stage, 'patch-kind', 250, [
        { what: 'deliveries of the kind started after the response', value: late, max: 0 },
        { what: 'deliveries of the other kind that did not start', value: 5 - kept, max: 0 },
      ]),
    ];
  });

/** @returns the time of the response, in milliseconds since 1970 */
async function removeKind({ bench, tokenOf }: Stage, member: CrowdMember): Promise<number> {
  const { status } = await fetch(`${bench.baseUrl}/subscriptions/${member.subscriptions[0]}`, {
    method: 'PATCH',
    headers: { authorization: `Bearer ${await tokenOf(member)}`, 'content-type': 'application/json' },
    body: JSON.stringify({ kinds: ['invoice.paid'] }),
  });
  if (status !== 200) throw new Error(`PATCH gave ${status}`);
  return Date.now();
}

async function countStarted(
  { bench }: Stage,
  { lanes }: CrowdMember,
  kind: string,
  since: number,
): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count
    from attempts a
    join deliveries d on d.lane = a.lane and d.sequence = a.sequence and d.day = a.day
    join events e on e.day = d.day and e.position = d.event
    where a.lane = ${lanes[0]} and e.kind = ${kind} and a.started_at > to_timestamp(${since}::float8 / 1000)`.execute(
    bench.db,
  );
  return rows[0]?.count ?? 0;
}
