/** Sends an event to the developer's own receiver, as the server would have sent it, and signed now. */

import { createHmac } from 'node:crypto';
import { reasonOf } from './session.ts';

const responseMsMax = 30_000;

/** An event as the server shows it to a subscriber that pulls. */
export interface PulledItem {
  sequence: number;
  id: string;
  kind: string;
  headers: Record<string, string>;
  /** The exact text of the body. */
  text: string;
}

export type Forwarded =
  | { kind: 'response'; status: number; ms: number }
  /** Nothing responded: it is worth another try. */
  | { kind: 'unreachable'; reason: string };

/**
 * Reads an item. The body's text is kept as it is, because another way to write the same JSON has another signature.
 * @throws Error if it is none
 */
export function readItem(data: string): PulledItem {
  const { body, ...rest } = JSON.parse(data) as Omit<PulledItem, 'text'> & { body: unknown };
  const start = `${JSON.stringify(rest).slice(0, -1)},"body":`;
  const text = data.startsWith(start) ? data.slice(start.length, -1) : JSON.stringify(body);
  return { ...rest, text };
}

/** @param signatureHeader its name, as `/meta` shows it @param secret the text that signs */
export async function forward(
  url: string,
  { headers, text }: PulledItem,
  signatureHeader: string,
  secret: string,
  signal: AbortSignal,
): Promise<Forwarded> {
  const seconds = Math.floor(Date.now() / 1_000);
  const signature = createHmac('sha256', secret).update(`${seconds}.${text}`).digest('hex');
  const sent = new Headers({ 'content-type': 'application/json', ...headers });
  sent.set(signatureHeader, `t=${seconds},v1=${signature}`);
  for (const name of ['host', 'content-length', 'connection', 'transfer-encoding']) sent.delete(name);
  const startedAt = performance.now();
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: sent,
      body: text,
      // A redirect would not be followed by the server either.
      redirect: 'manual',
      signal: AbortSignal.any([signal, AbortSignal.timeout(responseMsMax)]),
    });
    await response.body?.cancel();
    return { kind: 'response', status: response.status, ms: performance.now() - startedAt };
  } catch (error) {
    return { kind: 'unreachable', reason: reasonOf(error) };
  }
}
