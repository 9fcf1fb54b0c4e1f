/**
 * Work that makes room for other work: some of it in each turn of the event loop. Without admitted requests a turn is short, so this is
 * no limit. Beside them, refusals take a small part of each turn however many there are, and their clients wait.
 */

export class Paced {
  readonly #perTurn: number;
  readonly #tasks: (() => void)[] = [];
  #isRunning = false;

  constructor(perTurn: number) {
    this.#perTurn = perTurn;
  }

  add(task: () => void): void {
    this.#tasks.push(task);
    if (!this.#isRunning) this.#schedule();
  }

  #schedule(): void {
    this.#isRunning = true;
    setImmediate(() => {
      for (const task of this.#tasks.splice(0, this.#perTurn)) task();
      if (this.#tasks.length > 0) this.#schedule();
      else this.#isRunning = false;
    });
  }
}
