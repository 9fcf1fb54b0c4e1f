/**
 * What the worker does beside everything else: statements whose answers nobody waits for. An error is told, and what
 * was to be done is done again by the next tick of the clock.
 */

export class BackgroundTasks {
  readonly #running = new Set<Promise<void>>();
  readonly #onError: (error: Error) => void;

  constructor(onError: (error: Error) => void) {
    this.#onError = onError;
  }

  run(task: () => Promise<void>): void {
    const running = task()
      .catch(this.#onError)
      .finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  /** Resolves when all that is running now has ended. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#running);
  }
}
