/**
 * Receives the user's events and forwards them to a local URL, one at a time and in order.
 *
 *   signed in → subscription without a URL found or made → each event forwarded → … | withdrawn, deleted, interrupted
 */

import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { shown } from '../shared/response_text.ts';
import { type Forwarded, forward, type PulledItem, readItem } from './forward.ts';
import { ListenError, readObject, reasonMax, Session } from './session.ts';
import { type KnownSubscription, StateFile } from './state_file.ts';
import { readForever } from './stream.ts';

export interface ListenOptions {
  baseUrl: string;
  statePath: string;
  /** Where events go; null only to print them. */
  forwardTo: string | null;
  kinds: readonly string[];
  /** Begin after this sequence; null for events from now on. */
  replayAfter: number | null;
  /** Signs in place of the subscription's own secret. */
  secret: string | null;
  printsBodies: boolean;
  isColored: boolean;
  print: (line: string) => void;
  signal: AbortSignal;
}

const retryMs = { first: 500, most: 5_000 };
/** Milliseconds between writes of how far the events were forwarded. */
const savePauseMs = 1_000;

/**
 * Runs until the signal aborts.
 * @throws ListenError when there is nothing more to receive
 */
export async function listen(options: ListenOptions): Promise<void> {
  const { baseUrl, statePath, print, signal } = options;
  const file = new StateFile(statePath, baseUrl);
  const session = new Session({ baseUrl, file, print, signal });
  try {
    await session.open();
    await receive(options, session, file);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

async function receive(options: ListenOptions, session: Session, file: StateFile): Promise<void> {
  const { forwardTo, kinds, replayAfter, print, signal } = options;
  const subscription = await findOrCreate(options, session, file);
  const { headers } = (await readJson(await session.request('/meta'))) as {
    headers?: { signature?: unknown };
  };
  const signatureHeader = String(headers?.signature);
  const head = await newestSequence(session, subscription.id);
  const after = replayAfter ?? head;
  print(`Listening for ${kinds.join(', ')}${forwardTo === null ? '' : `, forwarding to ${forwardTo}`}.`);
  print(`Signing secret: ${shown(options.secret ?? subscription.secret)}`);
  if (replayAfter === null && head > subscription.after && subscription.after > 0) {
    const missed = head - subscription.after;
    print(`${missed} came while you were away. To get them, add --replay ${subscription.after}.`);
  }
  const progress = new Progress(file, kinds);
  try {
    await readForever({
      session,
      id: subscription.id,
      after,
      signal,
      print,
      onGap: (data) => print(`missing: ${shown(data)}`),
      async onItem(data) {
        const item = readItem(data);
        await handle(item, options, signatureHeader, options.secret ?? subscription.secret);
        progress.add(item.sequence);
      },
    });
  } finally {
    await progress.save();
  }
}

async function handle(
  item: PulledItem,
  { forwardTo, printsBodies, isColored, print, signal }: ListenOptions,
  signatureHeader: string,
  secret: string,
): Promise<void> {
  const { sequence, id, kind, text } = item;
  const what = `${new Date().toISOString().slice(11, 19)}  ${shown(kind)}  #${sequence}  ${shown(id)}`;
  if (forwardTo === null) print(what);
  let isWaiting = false;
  for (let pause = retryMs.first; forwardTo !== null; pause = Math.min(pause * 2, retryMs.most)) {
    const result = await forward(forwardTo, item, signatureHeader, secret, signal);
    signal.throwIfAborted();
    if (result.kind === 'response') {
      print(`${what}  → ${colored(result, isColored)} in ${Math.round(result.ms)} ms`);
      break;
    }
    if (!isWaiting) print(`${what}  → waiting for ${forwardTo} (${result.reason})`);
    isWaiting = true;
    await sleep(pause, undefined, { signal });
  }
  if (printsBodies) print(shown(text));
}

function colored({ status }: Extract<Forwarded, { kind: 'response' }>, isColored: boolean): string {
  const isGood = status >= 200 && status < 300;
  return isColored ? `\u001b[${isGood ? 32 : 31}m${status}\u001b[0m` : String(status);
}

/** The subscription of an earlier start for the same kinds, or a new one. */
async function findOrCreate(
  { kinds, print }: ListenOptions,
  session: Session,
  file: StateFile,
): Promise<KnownSubscription> {
  const key = kinds.join(',');
  const known = (await file.read()).subscriptions[key];
  if (known !== undefined) {
    const response = await session.request(`/subscriptions/${known.id}`);
    if (response.ok) {
      const { state } = await readObject(response);
      if (state === 'active') return known;
      await readJson(await patchActive(session, known.id));
      print('The subscription was paused and is active again.');
      return known;
    }
    await response.body?.cancel();
    if (response.status !== 404)
      throw new ListenError(`the subscription cannot be read: status ${response.status}`);
  }
  const created = (await readJson(
    await session.request('/subscriptions', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        url: null,
        kinds,
        signature: 'timestamp',
        description: `nuncio listen on ${hostname()}`.slice(0, 200),
      }),
    }),
  )) as { id?: unknown; secret?: unknown };
  if (typeof created.id !== 'string' || typeof created.secret !== 'string')
    throw new ListenError('the server has made no subscription');
  const subscription = { id: created.id, secret: created.secret, after: 0 };
  await file.change((state) => {
    state.subscriptions[key] = subscription;
  });
  return subscription;
}

function patchActive(session: Session, id: string): Promise<Response> {
  return session.request(`/subscriptions/${id}`, {
    method: 'PATCH',
    headers: { 'content-type': 'application/merge-patch+json' },
    body: JSON.stringify({ state: 'active' }),
  });
}

async function newestSequence(session: Session, id: string): Promise<number> {
  const { items } = (await readJson(await session.request(`/subscriptions/${id}/deliveries?limit=1`))) as {
    items?: { sequence?: unknown }[];
  };
  const sequence = items?.[0]?.sequence;
  return Number.isSafeInteger(sequence) ? (sequence as number) : 0;
}

/** @throws ListenError with what the server says is wrong */
async function readJson(response: Response): Promise<unknown> {
  const body = await readObject(response);
  if (response.ok) return body;
  const errors = (Array.isArray(body.errors) ? body.errors : [])
    .map((error) => `${error?.pointer} ${error?.message}`)
    .join('; ');
  const reason = errors || String(body.detail ?? `the server responded with ${response.status}`);
  throw new ListenError(shown(reason, reasonMax));
}

/** Remembers the last event that was forwarded, for the next start. */
class Progress {
  readonly #file: StateFile;
  readonly #key: string;
  #sequence = 0;
  #savedAt = 0;

  constructor(file: StateFile, kinds: readonly string[]) {
    this.#file = file;
    this.#key = kinds.join(',');
  }

  add(sequence: number): void {
    this.#sequence = sequence;
    if (Date.now() - this.#savedAt < savePauseMs) return;
    this.#savedAt = Date.now();
    // The command continues without it.
    void this.save().catch(() => {});
  }

  async save(): Promise<void> {
    const sequence = this.#sequence;
    if (sequence === 0) return;
    await this.#file.change((state) => {
      const subscription = state.subscriptions[this.#key];
      if (subscription !== undefined) subscription.after = Math.max(subscription.after, sequence);
    });
  }
}
