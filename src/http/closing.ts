/** Resources that close in reverse order of opening. Node 22 has no `AsyncDisposableStack`. */
export class Closing {
  readonly #closers: { name: string; close: () => unknown }[] = [];
  #closing: string | null = null;

  /**
   * Adds what closes the resource that was just opened.
   * @param name for the operator, when the resource does not close in time
   */
  defer(name: string, close: () => unknown): void {
    this.#closers.push({ name, close });
  }

  /** The resource that is closing now; null if none is. */
  get waitingFor(): string | null {
    return this.#closing;
  }

  /**
   * Closes everything, one after another; a second call does nothing.
   * @throws the first error, after everything else was closed
   */
  async close(): Promise<void> {
    const errors: unknown[] = [];
    for (let next = this.#closers.pop(); next !== undefined; next = this.#closers.pop()) {
      this.#closing = next.name;
      try {
        await next.close();
      } catch (error) {
        errors.push(error);
      }
    }
    this.#closing = null;
    if (errors.length > 0) throw errors[0];
  }
}
