/** Interruptible waits. `wake` and `end` interrupt an idle wait; only `end` interrupts a pause after a failure. */

export interface Waiter {
  wake(): void;
  /** Ends the current wait and all later ones. */
  end(): void;
  /** Clears an earlier `wake`. Call it before reading the outbox. */
  reset(): void;
  /** Returns immediately if `wake` was called since `reset`. */
  idle(ms: number): Promise<void>;
  pause(ms: number): Promise<void>;
}

export function createWaiter(): Waiter {
  let isAwake = false;
  let hasEnded = false;
  let finish: (() => void) | undefined;
  let isIdle = false;

  function wait(ms: number): Promise<void> {
    if (hasEnded) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(done, ms);
      finish = done;
      function done(): void {
        clearTimeout(timer);
        finish = undefined;
        resolve();
      }
    });
  }

  return {
    wake() {
      isAwake = true;
      if (isIdle) finish?.();
    },
    end() {
      hasEnded = true;
      finish?.();
    },
    reset() {
      isAwake = false;
    },
    async idle(ms) {
      if (isAwake) return;
      isIdle = true;
      await wait(ms);
      isIdle = false;
    },
    pause: wait,
  };
}
