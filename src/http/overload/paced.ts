/**
 * Work that makes room for other work: a part of each turn of the event loop. Without admitted requests this is no limit. Beside them,
 * refusals take a small part of the time however many there are, and their clients wait, which slows them down.
 */

/** Part of a turn, and so many milliseconds at least. */
const part = 1 / 8;
const turnMsMin = 0.5;

export class Paced {
  readonly #tasks: (() => void)[] = [];
  #isRunning = false;
  #endedAt = 0;

  add(task: () => void): void {
    this.#tasks.push(task);
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#endedAt = performance.now();
    setImmediate(() => this.#run());
  }

  #run(): void {
    let now = performance.now();
    const until = now + Math.max(turnMsMin, (now - this.#endedAt) * part);
    while (now < until) {
      const task = this.#tasks.shift();
      if (task === undefined) {
        this.#isRunning = false;
        return;
      }
      task();
      now = performance.now();
    }
    this.#endedAt = now;
    setImmediate(() => this.#run());
  }
}
