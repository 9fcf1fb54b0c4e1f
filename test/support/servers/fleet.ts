/**
 * Nodes of several versions behind one address, as a load balancer sees them. A request goes to any running node. If the node is being
 * stopped, it goes to another one; any other failure is a refusal.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { Environment } from '../../../src/config/environment.ts';
import { type ApiRequest, type ApiResponse, requester } from '../clients/api_client.ts';
import { type NuncioProcess, startProcess } from './process.ts';
import { freePort } from './server.ts';

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/** How to start a node of a version. */
export interface Version {
  name: 'old' | 'new';
  /** Its command line; by default this version's. */
  cli?: string;
  folder?: string;
}

export interface FleetNode {
  version: Version['name'];
  baseUrl: string;
  process: NuncioProcess;
  isStopping: boolean;
  /** Requests that it answered. */
  answered: number;
}

export class Fleet {
  readonly nodes: FleetNode[] = [];
  readonly refusals: string[] = [];
  /** Requests repeated at another node, because the first was being stopped. */
  repeated = 0;
  /** The longest response time since `beginStall`, in milliseconds. */
  stallMs = 0;
  readonly #scope: Scope;
  readonly #settings: Environment;
  #turn = 0;

  constructor(scope: Scope, settings: Environment) {
    this.#scope = scope;
    this.#settings = settings;
  }

  get running(): FleetNode[] {
    return this.nodes.filter((node) => !node.isStopping);
  }

  of(version: Version['name']): FleetNode[] {
    return this.running.filter((node) => node.version === version);
  }

  async start({ name, cli, folder }: Version): Promise<FleetNode> {
    // Redirects of a sign-in lead to the first node.
    const isFirst = this.nodes.length === 0 && this.#settings.NUNCIO_BASE_URL !== undefined;
    const port = isFirst ? new URL(this.#settings.NUNCIO_BASE_URL ?? '').port : String(await freePort());
    const settings = { ...this.#settings, PORT: port };
    const process = startProcess(this.#scope, ['start', '--no-migrate'], settings, [], cli, folder);
    const baseUrl = `http://localhost:${port}`;
    while (!(await isReady(baseUrl))) {
      if (process.child.exitCode !== null) throw new Error(`the ${name} node ended:\n${process.output()}`);
      await sleep(50);
    }
    const node = { version: name, baseUrl, process, isStopping: false, answered: 0 };
    this.nodes.push(node);
    return node;
  }

  async stop(node: FleetNode, signal: NodeJS.Signals): Promise<number | string> {
    node.isStopping = true;
    return node.process.end(signal);
  }

  /** Sends to one running node after the other. */
  sender(accessToken?: string) {
    return (method: string, path: string, options?: ApiRequest): Promise<ApiResponse> =>
      this.reach(`${method} ${path}`, (baseUrl) =>
        requester({ baseUrl }, accessToken)(method, path, options),
      );
  }

  /** @param what the request, for the report of a refusal */
  async reach<Result extends { status: number }>(
    what: string,
    send: (baseUrl: string) => Promise<Result>,
  ): Promise<Result> {
    for (;;) {
      const { running } = this;
      this.#turn += 1;
      const node = running[this.#turn % running.length] as FleetNode;
      const begun = performance.now();
      try {
        const response = await send(node.baseUrl);
        if (response.status < 500) {
          node.answered += 1;
          this.stallMs = Math.max(this.stallMs, performance.now() - begun);
          return response;
        }
        if (!node.isStopping) {
          this.refusals.push(`${what} at an ${node.version} node: ${JSON.stringify(response)}`);
        }
      } catch (error) {
        if (!node.isStopping) {
          this.refusals.push(`${what} at an ${node.version} node: ${(error as Error).cause ?? error}`);
        }
      }
      this.repeated += 1;
      await sleep(20);
    }
  }
}

async function isReady(baseUrl: string): Promise<boolean> {
  try {
    return (await fetch(`${baseUrl}/readyz`)).ok;
  } catch {
    return false;
  }
}
