/**
 * Runs the worker's database statements that nothing waits for. Errors are reported, and the next tick tries again.
 */

export class BackgroundTasks {
  readonly #running = new Set<Promise<void>>();
  readonly #onError: (error: Error) => void;

  constructor(onError: (error: Error) => void) {
    this.#onError = onError;
  }

  /** @returns resolves when the task has ended, also with an error */
  run(task: () => Promise<void>): Promise<void> {
    const running = task()
      .catch(this.#onError)
      .finally(() => this.#running.delete(running));
    this.#running.add(running);
    return running;
  }

  /** Resolves when all tasks that are running now have ended. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#running);
  }
}
