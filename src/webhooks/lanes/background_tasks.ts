/**
 * Runs the worker's database statements that nothing waits for. Errors are reported, and the next tick tries again.
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

  /** Resolves when all tasks that are running now have ended. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#running);
  }
}
