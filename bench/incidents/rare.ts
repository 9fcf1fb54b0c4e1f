/** Strangers with something to send only now and then. No node leases their lanes meanwhile, so each delivery waits for a lease and a load. */

import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { percentile } from '../deliveries/support.ts';
import { monotonicMs } from '../support/measure.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import { type Incident, type PhaseLatency, type PhaseName, phaseNames, type Row, type Size } from './row.ts';
import { type Stage, withStage } from './stage.ts';

const strangers = 40;
const actionPauseMs = 150;
/** Milliseconds after which a delivery counts as missing. */
const patienceMs = 15_000;
/** Milliseconds after which the lanes have no leases any more. */
const lingerMs = 12_000;
/** Seconds between two events of each account of the crowd. */
const crowdPauseSeconds = 10;

const actions = ['event', 'test event', 'resend'] as const;
type Action = (typeof actions)[number];

/** A receiver that tells who waits that something arrived at a path. */
class Doorbell {
  readonly #server: Server;
  readonly #waiting = new Map<string, () => void>();

  constructor() {
    this.#server = createServer((request, response) => {
      request.resume().once('end', () => response.end());
      this.#waiting.get(request.url ?? '')?.();
    });
  }

  async open(): Promise<string> {
    await once(this.#server.listen(0, '127.0.0.1'), 'listening');
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** @returns milliseconds until something arrives at the path; undefined if nothing does */
  async wait(path: string, action: () => Promise<unknown>): Promise<number | undefined> {
    const from = monotonicMs();
    const { promise, resolve } = Promise.withResolvers<number>();
    this.#waiting.set(path, () => resolve(monotonicMs() - from));
    await action();
    const ms = await Promise.race([promise, sleep(patienceMs, undefined, { ref: false })]);
    this.#waiting.delete(path);
    return ms;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

interface RareMember extends CrowdMember {
  token: string;
  /** Of its URL. */
  path: string;
  /** The last test event, which can be sent again. */
  delivery?: string;
}

class RareStrangers {
  readonly #stage: Stage;
  readonly #doorbell = new Doorbell();
  readonly #members: RareMember[] = [];
  readonly #latencies = new Map<Action, Map<PhaseName, number[]>>();
  #next = 0;
  missing = 0;
  refused = 0;

  constructor(stage: Stage) {
    this.#stage = stage;
    for (const action of actions) this.#latencies.set(action, new Map());
  }

  async open(): Promise<void> {
    const { bench, tokenOf } = this.#stage;
    const url = await this.#doorbell.open();
    const members = await makeCrowd(bench, {
      users: strangers,
      subscriptionsOfEach: 1,
      urlOf: (index) => `${url}/${index}`,
    });
    for (const [index, member] of members.entries()) {
      this.#members.push({ ...member, token: await tokenOf(member), path: `/${index}` });
    }
    // Each has a delivery that can be sent again, and a host that is known.
    for (const member of this.#members) await this.#doorbell.wait(member.path, () => this.#test(member));
    await sleep(lingerMs);
  }

  /** One action after the other, of all strangers in turn. */
  async phase(name: PhaseName, seconds: number): Promise<void> {
    const until = monotonicMs() + seconds * 1_000;
    const running: Promise<void>[] = [];
    while (monotonicMs() < until) {
      running.push(this.#act(name));
      await sleep(actionPauseMs);
    }
    await Promise.all(running);
  }

  rows(incident: string, maxMs: number): Row[] {
    return actions.map((action) => {
      const phases: Row['phases'] = {};
      for (const name of phaseNames) {
        const values = this.#latencies.get(action)?.get(name);
        if (values !== undefined) phases[name] = summarize(values);
      }
      const isSlow = { what: 'max during, ms', value: phases.during?.max ?? Number.NaN, max: maxMs };
      const isRefused = { what: 'refused', value: this.refused, max: 0 };
      const isMissing = { what: 'missing', value: this.missing, max: 0 };
      return {
        incident: `${incident}: ${action}`,
        phases,
        missing: this.missing,
        checks: [isSlow, isRefused, isMissing],
      };
    });
  }

  close(): void {
    this.#doorbell.close();
  }

  async #act(name: PhaseName): Promise<void> {
    const index = this.#next++;
    const member = this.#members[index % strangers] as RareMember;
    const action = actions[Math.floor(index / strangers) % actions.length] as Action;
    const work = {
      event: () => this.#stage.publish(member.accountId, 1),
      'test event': () => this.#test(member),
      resend: () => this.#request(member.token, `/deliveries/${member.delivery}/resend`),
    };
    try {
      const ms = await this.#doorbell.wait(member.path, work[action]);
      if (ms === undefined) this.missing += 1;
      else {
        const phases = this.#latencies.get(action) as Map<PhaseName, number[]>;
        phases.set(name, [...(phases.get(name) ?? []), ms]);
      }
    } catch {
      this.refused += 1;
    }
  }

  async #test(member: RareMember): Promise<void> {
    const made = await this.#request(member.token, `/subscriptions/${member.subscriptions[0]}/test`);
    member.delivery = made.delivery;
  }

  async #request(token: string, path: string): Promise<{ delivery: string }> {
    const response = await fetch(`${this.#stage.bench.baseUrl}${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}` },
    });
    if (response.status !== 202) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as { delivery: string };
  }
}

function summarize(values: readonly number[]): PhaseLatency {
  const at = (part: number) => percentile([...values], part);
  return { count: values.length, p50: at(0.5), p99: at(0.99), max: at(1) };
}

/** Twenty accounts get events for many subscriptions. @param urlOf the URL of them all */
function rareBeside(
  incident: string,
  subscriptionsOfEach: number,
  maxMs: number,
  urlOf: (stage: Stage) => string,
) {
  return (size: Size) =>
    withStage(size, async (stage) => {
      const crowd = await makeCrowd(stage.bench, {
        users: 20,
        subscriptionsOfEach,
        urlOf: () => urlOf(stage),
      });
      const rare = new RareStrangers(stage);
      try {
        await rare.open();
        await rare.phase('alone', size.of(18, 36));
        const seconds = size.of(36, 90);
        await Promise.all([
          rare.phase('during', seconds),
          (async () => {
            for (let second = 0; second < seconds; second += crowdPauseSeconds) {
              await Promise.all(crowd.map(({ accountId }) => stage.publish(accountId, 1)));
              await sleep(crowdPauseSeconds * 1_000);
            }
          })(),
        ]);
        await rare.phase('after', size.of(9, 18));
        return rare.rows(incident, maxMs);
      } finally {
        rare.close();
      }
    });
}

/** 48,000 subscriptions at a receiver that never answers: more than a node leases. */
export const refusedLanes: Incident = rareBeside(
  'refused-lanes',
  2_400,
  1_000,
  ({ others }) => `http://127.0.0.1:${others.ports.hang}/hooks`,
);

/** 20,000 subscriptions at a receiver that answers at once, whose lanes have no leases when their events come. */
export const coldLanes: Incident = rareBeside('cold-lanes', 1_000, 1_000, ({ othersUrl }) => othersUrl);
