/** Toasts report the result of an action. Screen readers announce them, and they stay while hovered or focused. */

import { CircleAlert, CircleCheck, X } from 'lucide-react';
import { useEffect, useRef, useState, useSyncExternalStore } from 'react';
import { describeFailure } from '../api/problem.ts';
import { Button } from './button.tsx';

interface Toast {
  id: number;
  look: 'good' | 'bad';
  text: string;
}

/** Milliseconds that a success is shown. Errors stay until they are closed. */
const shownMs = 6_000;
const toastsMax = 4;

let toasts: readonly Toast[] = [];
let counter = 0;
const listeners = new Set<() => void>();

function put(next: readonly Toast[]): void {
  toasts = next.slice(-toastsMax);
  for (const listener of listeners) listener();
}

function add(look: Toast['look'], text: string): void {
  counter += 1;
  // An equal toast replaces the previous one.
  put([...toasts.filter((toast) => toast.text !== text), { id: counter, look, text }]);
}

/** Reports a success. */
export function tell(text: string): void {
  add('good', text);
}

/** Reports an error. */
export function tellFailure(error: unknown): void {
  add('bad', describeFailure(error));
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function Toasts() {
  const shown = useSyncExternalStore(subscribe, () => toasts);
  return (
    <section className="toasts" aria-label="Notifications" aria-live="polite" aria-relevant="additions">
      {shown.map((toast) => (
        <ToastCard key={toast.id} toast={toast} />
      ))}
    </section>
  );
}

function ToastCard({ toast }: { toast: Toast }) {
  const [isHeld, setHeld] = useState(false);
  const close = useRef(() => put(toasts.filter(({ id }) => id !== toast.id)));
  useEffect(() => {
    if (isHeld || toast.look === 'bad') return;
    const timer = setTimeout(close.current, shownMs);
    return () => clearTimeout(timer);
  }, [isHeld, toast.look]);
  const Icon = toast.look === 'good' ? CircleCheck : CircleAlert;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: hovering only keeps the toast open
    <div
      className={`toast toast-${toast.look}`}
      onMouseEnter={() => setHeld(true)}
      onMouseLeave={() => setHeld(false)}
      onFocus={() => setHeld(true)}
      onBlur={() => setHeld(false)}
    >
      <Icon size={18} aria-hidden />
      <p className="toast-text">{toast.text}</p>
      <Button look="ghost" isSmall isIcon aria-label="Close" onPress={close.current}>
        <X size={16} aria-hidden />
      </Button>
    </div>
  );
}
