/** Waiting that ends sooner: idle waits by `wake` or `end`, pauses after a failure by `end` alone. */

export interface Waiter {
  wake(): void;
  /** Ends this wait and all later ones. */
  end(): void;
  /** Forgets a `wake`: called before looking for what it told of. */
  reset(): void;
  /** Returns at once where `wake` was called since `reset`. */
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
