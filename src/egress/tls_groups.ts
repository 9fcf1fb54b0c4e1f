/** The groups in which keys are exchanged, in both directions. */

import { createSecureContext } from 'node:tls';

/** Without groups that are slow: the other side chooses, and P-521 takes this thread some three milliseconds. Older versions of Node do not know the first one. */
export const tlsGroups = ['X25519MLKEM768', 'X25519', 'P-256', 'P-384'].filter(isKnown).join(':');

function isKnown(group: string): boolean {
  try {
    createSecureContext({ ecdhCurve: group });
    return true;
  } catch {
    return false;
  }
}
