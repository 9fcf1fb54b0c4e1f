/**
 * A batch: several statements sent in one piece by PostgreSQL's extended protocol, with one `Sync` behind them all. So
 * they are one transaction, which is committed before the server says that it is ready, and nobody is answered before.
 * The driver knows no such thing; it lets others write to its connection (as its cursors do).
 *
 *   sent → answered one by one, in order → ready: committed | refused: rolled back as a whole
 */

import pg from 'pg';
import { isDatabaseUnavailable, prepareAnew, statementName } from './database.ts';

export interface BatchStatement {
  readonly text: string;
  readonly values: unknown[];
  resolve(result: pg.QueryResult): void;
  reject(error: Error): void;
  /** Whether it is to be sent by itself, because it was refused together with others. */
  isAlone: boolean;
}

/** What of the driver's connection is used. */
interface Connection {
  sync(): void;
  execute(portal: object): void;
  submittedNamedStatements: Record<string, string>;
  stream: { cork(): void; uncork(): void };
}

/**
 * The driver's own query, but that what follows is part of the same transaction. The driver's types do not list what its
 * client calls on a query, nor the third parameter: what is used stands here.
 */
class Part extends (pg.Query as unknown as new (
  config: object,
  values: undefined,
  done: (error: Error | null, result: pg.QueryResult) => void,
) => {
  name: string;
  text: string;
  prepare(connection: Connection): void;
  handleRowDescription(message: unknown): void;
  handleDataRow(message: unknown): void;
  handleCommandComplete(message: unknown, connection: Connection): void;
  handleError(error: Error, connection: Connection): void;
  handleReadyForQuery(connection: Connection): void;
}) {
  _getRows(connection: Connection): void {
    connection.execute({ portal: '' });
  }
}

export class Batch {
  readonly #statements: BatchStatement[];
  readonly #parts: Part[];
  /** The one that is being answered. */
  #current = 0;
  /** Set by the driver, which adds its limit of time to it. */
  callback: (error: Error | null, refused: BatchStatement[]) => void = () => {};

  constructor(statements: BatchStatement[]) {
    this.#statements = statements;
    this.#parts = statements.map(
      ({ text, values, resolve, reject }) =>
        new Part({ name: statementName(text) ?? '', text, values }, undefined, (error, result) =>
          error === null ? resolve(result) : reject(error),
        ),
    );
  }

  /**
   * @returns those that have to be sent again, each by itself: one of them was refused, and nothing was done
   * @throws Error where the connection broke, or the answer did not come in time: what was done is not known
   */
  sendOver(client: pg.Client): Promise<BatchStatement[]> {
    return new Promise((resolve, reject) => {
      this.callback = (error, refused) => (error === null ? resolve(refused) : reject(error));
      // The driver's type of it asks for its own connection, of which less is used here.
      client.query(this as unknown as pg.Submittable);
    });
  }

  /** The driver remembers by this what it has prepared. */
  get name(): string {
    return this.#parts[this.#current]?.name ?? '';
  }

  get text(): string {
    return this.#parts[this.#current]?.text ?? '';
  }

  submit(connection: Connection): null {
    connection.stream.cork();
    for (const part of this.#parts) part.prepare(connection);
    connection.sync();
    connection.stream.uncork();
    return null;
  }

  handleRowDescription(message: unknown): void {
    this.#parts[this.#current]?.handleRowDescription(message);
  }

  handleDataRow(message: unknown): void {
    this.#parts[this.#current]?.handleDataRow(message);
  }

  handleCommandComplete(message: unknown, connection: Connection): void {
    this.#parts[this.#current]?.handleCommandComplete(message, connection);
    this.#current += 1;
  }

  handleReadyForQuery(connection: Connection): void {
    for (const part of this.#parts) part.handleReadyForQuery(connection);
    this.callback(null, []);
  }

  handleError(error: Error, connection: Connection): void {
    // What stands behind the one that was refused has not even been read.
    for (const { name } of this.#parts.slice(this.#current)) delete connection.submittedNamedStatements[name];
    if (!(error instanceof pg.DatabaseError) || isDatabaseUnavailable(error)) {
      this.callback(error, []);
      return;
    }
    const [only] = this.#statements;
    if (this.#statements.length === 1 && only !== undefined) {
      const isToBeTriedAgain = prepareAnew(error, this.name, only.text) !== undefined;
      if (!isToBeTriedAgain) only.reject(error);
      this.callback(null, isToBeTriedAgain ? [only] : []);
      return;
    }
    for (const statement of this.#statements) statement.isAlone = true;
    this.callback(null, this.#statements);
  }
}
