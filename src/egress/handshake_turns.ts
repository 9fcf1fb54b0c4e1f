/**
 * Turns of a thread's TLS handshakes. What a host sends next makes OpenSSL verify its certificates, which takes up to 10 ms, and hundreds of
 * hosts can send at the same moment. So each turn of the event loop verifies for one of them. Addresses take turns.
 *
 *   waiting, by address → its turn → verified
 */

import { addressKey } from './address_key.ts';

type Verify = () => void;

const waiting = new Map<string, Verify[]>();
let isPlanned = false;

/** @param address in the form of `canonicalAddress` @param verify called later, once; throws nothing */
export function takeHandshakeTurn(address: string, port: number, verify: Verify): void {
  const key = addressKey(address, String(port));
  const those = waiting.get(key);
  if (those === undefined) waiting.set(key, [verify]);
  else those.push(verify);
  plan();
}

function plan(): void {
  if (isPlanned || waiting.size === 0) return;
  isPlanned = true;
  setImmediate(() => {
    isPlanned = false;
    const first = waiting.entries().next().value;
    if (first === undefined) return;
    const [key, those] = first;
    const verify = those.shift() as Verify;
    // To the end of the turns.
    waiting.delete(key);
    if (those.length > 0) waiting.set(key, those);
    verify();
    plan();
  });
}
