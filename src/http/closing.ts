/** Resources that close in reverse order of opening. Node 22 has no `AsyncDisposableStack`. */
export class Closing {
  readonly #closers: (() => unknown)[] = [];

  /** Adds what closes the resource that was just opened. */
  defer(close: () => unknown): void {
    this.#closers.push(close);
  }

  /**
   * Closes everything, one after another; a second call does nothing.
   * @throws the first error, after everything else was closed
   */
  async close(): Promise<void> {
    const errors: unknown[] = [];
    for (let close = this.#closers.pop(); close !== undefined; close = this.#closers.pop()) {
      try {
        await close();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }
}
