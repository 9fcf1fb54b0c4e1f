/**
 * A token bucket: how many introspections may turn out to be of no active token. Strangers use it up instead of the rate
 * limit that the issuer gives this API. An introspection that finds an active token is given back.
 */

/** Maximum at once, and per second afterwards: far below the limit of the issuer (6,000 a minute by default). */
const atOnceMax = 300;
const perSecond = 10;

export interface Allowance {
  /** @returns false if there is none left */
  take(): boolean;
  giveBack(): void;
}

export function createAllowance(): Allowance {
  let left = atOnceMax;
  let countedAt = performance.now();
  return {
    take() {
      const now = performance.now();
      left = Math.min(atOnceMax, left + ((now - countedAt) / 1_000) * perSecond);
      countedAt = now;
      if (left < 1) return false;
      left -= 1;
      return true;
    },
    giveBack() {
      left = Math.min(atOnceMax, left + 1);
    },
  };
}
