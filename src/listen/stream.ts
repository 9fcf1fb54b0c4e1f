/**
 * Reads a subscription's events as server-sent events, for as long as the subscription exists. It connects again after the last event
 * that was handled, whatever ended the connection: the server, the network, an expired token, or a computer that slept.
 *
 *   connecting → reading → (end, error, silence) pause → connecting → … | terminated
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { parseObject, shown } from '../shared/response_text.ts';
import { ListenError, readObject, reasonMax, reasonOf, type Session } from './session.ts';

/** The server sends a comment every 15 seconds. */
const silenceMsMax = 45_000;
const pauseMs = { first: 250, most: 10_000 };
/** Maximum characters of one message. */
const messageMax = 16_777_216;

export interface StreamOptions {
  session: Session;
  /** Of the subscription. */
  id: string;
  after: number;
  signal: AbortSignal;
  print: (line: string) => void;
  onItem: (data: string) => Promise<void>;
  onGap: (data: string) => void;
}

interface Message {
  event: string;
  id: string;
  data: string;
}

/** @throws ListenError when there is nothing more to read */
export async function readForever(options: StreamOptions): Promise<never> {
  const { print, signal } = options;
  let { after } = options;
  for (let pause = pauseMs.first; ; ) {
    const before = after;
    try {
      after = await readOnce({ ...options, after }, (handled) => {
        after = handled;
      });
    } catch (error) {
      if (error instanceof ListenError || signal.aborted) throw error;
      print(`disconnected (${reasonOf(error)}), trying again`);
    }
    pause = after > before ? pauseMs.first : Math.min(pause * 2, pauseMs.most);
    await sleep(pause * (0.5 + Math.random() / 2), undefined, { signal });
  }
}

/** @returns the last sequence that was handled, when the server ended the stream */
async function readOnce(
  { session, id, after, signal, onItem, onGap }: StreamOptions,
  onHandled: (sequence: number) => void,
): Promise<number> {
  const silence = new AbortController();
  const stop = () => silence.abort(new Error('the server was silent'));
  let timer = setTimeout(stop, silenceMsMax);
  let handled = after;
  try {
    const response = await session.request(`/subscriptions/${id}/events?after=${after}`, {
      headers: { accept: 'text/event-stream' },
      signal: AbortSignal.any([signal, silence.signal]),
    });
    await requireStream(response);
    for await (const message of messagesOf(response, () => {
      clearTimeout(timer);
      timer = setTimeout(stop, silenceMsMax);
    })) {
      // While the receiver is down, the server waits for us.
      clearTimeout(timer);
      if (message.event === 'terminated') throw terminated(message.data);
      if (message.event === 'end') return handled;
      if (message.event === 'gap') onGap(message.data);
      else if (message.event === '') await onItem(message.data);
      if (message.id !== '') {
        if (!Number.isSafeInteger(Number(message.id))) throw new Error('an event has no sequence');
        handled = Number(message.id);
        onHandled(handled);
      }
      timer = setTimeout(stop, silenceMsMax);
    }
    return handled;
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

async function requireStream(response: Response): Promise<void> {
  if (response.ok && response.headers.get('content-type')?.startsWith('text/event-stream')) return;
  // The body of a stream is not read: it may never end.
  if (response.ok) await response.body?.cancel();
  const { detail = '' } = response.ok ? {} : await readObject(response);
  const reason = shown(String(detail), reasonMax) || `status ${response.status} without events`;
  if ([400, 403, 404, 409].includes(response.status))
    throw new ListenError(`the events cannot be read: ${reason}`);
  throw new Error(reason);
}

function terminated(data: string): ListenError {
  const reason = String(parseObject(data)?.reason ?? '');
  const words: Readonly<Record<string, string>> = {
    ended: 'access was withdrawn, or the subscription was deleted',
    disabled: 'the subscription is paused',
    suspended: 'the account or the app is suspended',
  };
  return new ListenError(words[reason] ?? `the subscription ended (${shown(reason, reasonMax)})`);
}

/** Parses server-sent events. Comments are left out. @param onBytes called for every part that arrives */
async function* messagesOf(response: Response, onBytes: () => void): AsyncGenerator<Message> {
  const reader = response.body?.pipeThrough(new TextDecoderStream());
  let parts: string[] = [];
  let length = 0;
  let last = '';
  for await (const part of reader ?? []) {
    onBytes();
    parts.push(part);
    length += part.length;
    if (length > messageMax) throw new Error('an event is too large');
    // Joined only at an end, because an event may come in many small parts.
    const hasEnd = (last + part).includes('\n\n');
    last = part.at(-1) ?? last;
    if (!hasEnd) continue;
    let text = parts.join('');
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const message = toMessage(text.slice(0, end));
      text = text.slice(end + 2);
      if (message.data !== '') yield message;
    }
    parts = [text];
    length = text.length;
    last = text.at(-1) ?? '';
  }
}

function toMessage(text: string): Message {
  const message: Message = { event: '', id: '', data: '' };
  const data: string[] = [];
  for (const line of text.split('\n')) {
    const [, name, value = ''] = /^(event|id|data): ?(.*)$/s.exec(line) ?? [];
    if (name === 'data') data.push(value);
    else if (name === 'event' || name === 'id') message[name] = value;
  }
  return { ...message, data: data.join('\n') };
}
