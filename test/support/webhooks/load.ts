/** Events of an account, published without end, as the load of a test. */

import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { runs } from '../runner/tier.ts';
import { publish, type Request } from './apps.ts';
import type { Subscriber } from './subscriber.ts';

/** Events in each batch. Some hundred events a second, or some thousand, are enough: more only keep the processor busy. */
const batch = runs(10, 50);

/** Events of an account that its subscriber has not received yet: an ordered lane on a slow machine would fall ever further behind. */
const aheadMax = 4 * batch;

/** Publishes continuously until the test stops it. With a `subscriber`, it waits while this one is `aheadMax` events behind. */
export function publishOnAndOn(
  t: TestContext,
  publisher: Request,
  account: { id: string },
  subscriber?: Subscriber,
) {
  let isOver = false;
  let mark = 0;
  const isAhead = () =>
    subscriber !== undefined &&
    mark - subscriber.received.filter(({ body }) => body.includes(account.id)).length > aheadMax;
  const running = (async () => {
    while (!isOver) {
      if (isAhead()) {
        await sleep(20);
        continue;
      }
      const marks = Array.from({ length: batch }, (_, index) => `${account.id} ${mark + index}`);
      mark += batch;
      await publish(publisher, account, marks);
      await sleep(20);
    }
  })();
  running.catch(() => {});
  const stop = async () => {
    isOver = true;
    await running;
  };
  t.after(async () => {
    isOver = true;
  });
  return { stop, count: () => mark };
}
