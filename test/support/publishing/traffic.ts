/** A publisher and a subscriber that run while an installation is restarted, failed over, restored and upgraded. */

import { setTimeout as sleep } from 'node:timers/promises';
import { Agent, fetch } from 'undici';
import { basic } from '../clients/oauth.ts';
import { patienceMs } from '../patience.ts';
import { pushBody } from '../webhooks/apps.ts';
import type { Subscriber } from '../webhooks/subscriber.ts';

const pauseMs = 50;
/** A publisher gives up a request and repeats it with the same id. */
const requestMs = 60_000;

export interface Traffic {
  /** Waits until every event that was accepted so far has arrived. @throws Error with a missing one on timeout */
  arrived: () => Promise<void>;
  /** How often a request was refused or failed since the last call. The publisher repeats it. */
  takeRefusals: () => number;
  /** Stops the publisher, and waits until everything has arrived. */
  end: () => Promise<{ accepted: number; received: number }>;
}

interface Parts {
  /** The base URL. */
  origin: string;
  /** As `nuncio client create --json` prints it. */
  publisher: { client_id: string; client_secret: string };
  accountId: string;
  subscriber: Subscriber;
}

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/** Publishes one event after the other over HTTP. A request without a 202 is repeated with the same id. */
export function startTraffic(scope: Scope, { origin, publisher, accountId, subscriber }: Parts): Traffic {
  // As most backends do, over HTTP/1.1.
  const dispatcher = new Agent({ allowH2: false });
  const accepted = new Set<string>();
  let refusals = 0;
  let isStopped = false;
  let token: string | undefined;

  async function fetchToken(): Promise<string | undefined> {
    const response = await fetch(`${origin}/oauth/token`, {
      method: 'POST',
      headers: { authorization: basic(publisher.client_id, publisher.client_secret) },
      body: new URLSearchParams({ grant_type: 'client_credentials', scope: 'write:events' }),
      signal: AbortSignal.timeout(requestMs),
      dispatcher,
    });
    return response.ok ? ((await response.json()) as { access_token: string }).access_token : undefined;
  }

  /** @returns whether the server says that the event is durable */
  async function publishOnce(mark: string): Promise<boolean> {
    token ??= await fetchToken();
    if (token === undefined) return false;
    const response = await fetch(`${origin}/events`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ kind: 'push', account: accountId, body: pushBody(mark), id: mark }),
      signal: AbortSignal.timeout(requestMs),
      dispatcher,
    });
    await response.text();
    if (response.status === 401) token = undefined;
    return response.status === 202;
  }

  async function run(): Promise<void> {
    for (let number = 1; !isStopped; number += 1) {
      const mark = `event-${number}`;
      while (!(await publishOnce(mark).catch(() => false))) {
        refusals += 1;
        if (isStopped) return;
        await sleep(pauseMs);
      }
      accepted.add(mark);
      await sleep(pauseMs);
    }
  }

  async function arrived(): Promise<void> {
    const wanted = new Set(accepted);
    if (wanted.size === 0) throw new Error('no event was accepted');
    const begin = performance.now();
    let seen = 0;
    for (;;) {
      for (; seen < subscriber.received.length; seen += 1)
        wanted.delete(markOf(subscriber.received[seen]?.body));
      if (wanted.size === 0) return;
      if (performance.now() - begin > patienceMs) {
        throw new Error(
          `${wanted.size} of ${accepted.size} events did not arrive, such as ${[...wanted][0]}`,
        );
      }
      await sleep(pauseMs);
    }
  }

  const running = run();
  let ending: Promise<void> | undefined;
  const stop = () => {
    isStopped = true;
    ending ??= running.then(() => dispatcher.close());
    return ending;
  };
  scope.after(stop);
  return {
    arrived: async () => {
      const before = accepted.size;
      // At least one event is published after the step.
      for (const begin = performance.now(); accepted.size <= before; await sleep(pauseMs)) {
        if (performance.now() - begin > patienceMs) throw new Error('no event is accepted any more');
      }
      await arrived();
    },
    takeRefusals: () => {
      const count = refusals;
      refusals = 0;
      return count;
    },
    async end() {
      await stop();
      await arrived();
      return { accepted: accepted.size, received: subscriber.received.length };
    },
  };
}

function markOf(body = ''): string {
  return /refs\/heads\/(event-\d+)"/.exec(body)?.[1] ?? '';
}
