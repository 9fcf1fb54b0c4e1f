/** Requests that several tenants share. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { FetchRequest, GuardedFetch } from '../../src/egress/fetch.ts';
import { SharedFetch } from '../../src/egress/shared_fetch.ts';
import { NoTurnError } from '../../src/shared/limited_work.ts';

const url = 'https://app.example/document.json';

interface Wait {
  tenant: string;
  signal: AbortSignal;
  /** All turns have come. */
  send: () => void;
  respond: (text: string) => void;
  fail: (error: Error) => void;
}

/** Lets the test decide whose turns come. */
function startTurns(): { waits: Wait[]; fetch: GuardedFetch } {
  const waits: Wait[] = [];
  const fetch = async (_url: string | URL, { tenant = '', signal, onTurns }: FetchRequest = {}) => {
    const { promise, resolve, reject } = Promise.withResolvers<Response>();
    signal?.addEventListener('abort', () => reject(new NoTurnError()));
    waits.push({
      tenant,
      signal: signal as AbortSignal,
      send: onTurns as () => void,
      respond: (text) => resolve(new Response(text)),
      fail: reject,
    });
    return promise;
  };
  return { waits, fetch };
}

const textOf = async (response: Promise<Response>) => (await response).text();

test('attack: who has used up its turns does not make others wait who want the same', async () => {
  const { waits, fetch } = startTurns();
  const shared = new SharedFetch(fetch);
  const responses = [
    textOf(shared.get(url, { tenant: 'hostile' })),
    textOf(shared.get(url, { tenant: 'b' })),
  ];
  shared.join(url, 'c');
  shared.join(url, 'c');
  shared.join('https://app.example/other.json', 'd');
  assert.deepEqual(
    waits.map(({ tenant }) => tenant),
    ['hostile', 'b', 'c'],
  );
  const [hostile, b, c] = waits as [Wait, Wait, Wait];
  c.send();
  assert.deepEqual([hostile.signal.aborted, b.signal.aborted, c.signal.aborted], [true, true, false]);
  // It is sent: whoever comes now waits for its response.
  responses.push(textOf(shared.get(url, { tenant: 'e' })));
  assert.equal(waits.length, 3);
  c.respond('document');
  assert.deepEqual(await Promise.all(responses), ['document', 'document', 'document']);
});

test('a tenant that gets no turn fails only those who have none either', async () => {
  const { waits, fetch } = startTurns();
  const shared = new SharedFetch(fetch);
  const both = [shared.get(url, { tenant: 'a' }), shared.get(url, { tenant: 'b' })];
  const [a, b] = waits as [Wait, Wait];
  a.fail(new NoTurnError());
  b.fail(new Error('last'));
  for (const each of both) await assert.rejects(each, /last/);
  const sent = shared.get(url, { tenant: 'a' });
  shared.join(url, 'b');
  (waits[2] as Wait).send();
  (waits[2] as Wait).fail(new Error('refused'));
  await assert.rejects(sent, /refused/);
});

test('only what is sent counts for the limit of a URL, above which the last response is repeated', async () => {
  const { waits, fetch } = startTurns();
  const shared = new SharedFetch(fetch);
  for (let index = 0; index < 30; index += 1) {
    const response = shared.get(url, { tenant: 'hostile' });
    (waits.at(-1) as Wait).fail(new NoTurnError());
    await assert.rejects(response, NoTurnError);
  }
  for (let index = 0; index < 10; index += 1) {
    const response = textOf(shared.get(url, { tenant: 'a' }));
    (waits.at(-1) as Wait).send();
    (waits.at(-1) as Wait).respond(String(index));
    assert.equal(await response, String(index));
  }
  const count = waits.length;
  assert.equal(await textOf(shared.get(url, { tenant: 'a' })), '9');
  assert.equal(waits.length, count);
});
