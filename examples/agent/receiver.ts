/** The agent's own web server: the redirect URI of its sign-in, and the callback that receives events. */

import type { AddressInfo } from 'node:net';
import {
  experimental_createMCPEventWebhook as createMCPEventWebhook,
  type Experimental_MCPEvent as MCPEvent,
  type Experimental_MCPEventStore as MCPEventStore,
  type Experimental_MCPEventSubscription as MCPEventSubscription,
} from '@ai-sdk/mcp';
import { createAdaptorServer } from '@hono/node-server';

export interface Receiver {
  url: string;
  /** What the agent remembers of its subscriptions. A real agent keeps this in a database. */
  store: MCPEventStore;
  /** Resolves with the parameters of the redirect. */
  redirected: Promise<URLSearchParams>;
  /** Events whose signature the library has verified. */
  events: MCPEvent[];
  /** Why subscriptions ended. */
  ends: { code: number; message: string }[];
  close(): Promise<void>;
}

export async function startReceiver(): Promise<Receiver> {
  const store = createStore();
  const events: MCPEvent[] = [];
  const ends: Receiver['ends'] = [];
  const redirected = Promise.withResolvers<URLSearchParams>();
  const receive = createMCPEventWebhook({
    store,
    onEvent: async ({ event }) => void events.push(event),
    onTerminated: async ({ termination }) => void ends.push(termination.error),
  });
  const server = createAdaptorServer({
    fetch(request: Request) {
      const { pathname, searchParams } = new URL(request.url);
      if (pathname === '/events') return receive(request);
      if (pathname !== '/callback') return new Response(null, { status: 404 });
      redirected.resolve(searchParams);
      return new Response('Signed in. Return to the terminal.');
    },
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    store,
    redirected: redirected.promise,
    events,
    ends,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      if ('closeAllConnections' in server) server.closeAllConnections();
      await closed;
    },
  };
}

function createStore(): MCPEventStore {
  const kept = new Map<string, MCPEventSubscription>();
  return {
    get: async (key) => kept.get(key),
    getById: async (id) => kept.values().find((each) => each.id === id),
    set: async (subscription) => void kept.set(subscription.key, subscription),
    async update(key, patch) {
      const before = kept.get(key);
      if (before !== undefined) kept.set(key, { ...before, ...patch });
    },
    delete: async (key) => void kept.delete(key),
  };
}
