/**
 * Secrets that the server has just created, kept in memory until the user has copied them. A reload forgets them.
 */

import { useSyncExternalStore } from 'react';

interface Shown {
  id: string;
  value: string;
}

const shown = new Map<string, Shown>();
const listeners = new Set<() => void>();

export function keepSecret(clientId: string, id: string, value: string): void {
  shown.set(clientId, { id, value });
  tellListeners();
}

export function forgetSecret(clientId: string): void {
  shown.delete(clientId);
  tellListeners();
}

export function useShownSecret(clientId: string): Shown | undefined {
  return useSyncExternalStore(subscribe, () => shown.get(clientId));
}

function tellListeners(): void {
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
