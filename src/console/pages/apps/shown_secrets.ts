/**
 * Secrets that the server has just shown, kept in memory only, to copy and to test the app. A reload forgets them.
 */

import { useSyncExternalStore } from 'react';

interface Shown {
  id: string;
  value: string;
  /** Whether the page still shows it: the user has not confirmed yet. */
  isOpen: boolean;
}

const shown = new Map<string, Shown>();
const listeners = new Set<() => void>();

export function keepSecret(clientId: string, id: string, value: string): void {
  put(clientId, { id, value, isOpen: true });
}

export function closeSecret(clientId: string): void {
  const secret = shown.get(clientId);
  if (secret !== undefined) put(clientId, { ...secret, isOpen: false });
}

export function forgetSecret(clientId: string): void {
  shown.delete(clientId);
  for (const listener of listeners) listener();
}

export function useShownSecret(clientId: string): Shown | undefined {
  return useSyncExternalStore(subscribe, () => shown.get(clientId));
}

function put(clientId: string, secret: Shown): void {
  shown.set(clientId, secret);
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
