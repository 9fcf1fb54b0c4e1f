/** A state, distinguished by more than its color. */

import type { ReactNode } from 'react';

export type BadgeLook = 'good' | 'warn' | 'bad' | 'info' | 'still';

export function Badge({ look = 'still', children }: { look?: BadgeLook; children: ReactNode }) {
  const shown = typeof children === 'string' ? capitalize(children) : children;
  return <span className={`badge badge-${look}`}>{shown}</span>;
}

/** The API writes states in lower case. */
export function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
