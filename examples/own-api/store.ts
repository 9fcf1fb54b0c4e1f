/**
 * The notes, in a database of this API's own. An event is written in the same transaction as the change that it tells
 * of, into a table from which it is published afterwards: none is lost, and none tells of what never happened.
 */

import { randomUUID } from 'node:crypto';
import { DatabaseSync } from 'node:sqlite';
import type { NewEvent } from '../../src/protect/protect.ts';

export interface Note {
  id: string;
  text: string;
  created_at: string;
}

export interface Store {
  list(account: string): Note[];
  add(account: string, text: string): Note;
  /** @returns whether the account had such a note */
  remove(account: string, id: string): boolean;
  /** Events that are not yet known to be published, the oldest first. */
  waitingEvents(limit: number): NewEvent[];
  forgetEvents(ids: readonly string[]): void;
  /** Sets an event aside that will never be taken, with the reason. */
  refuseEvent(id: string, reason: string): void;
  close(): void;
}

/** @param file path of the database, or `:memory:` */
export function openStore(file: string): Store {
  const db = new DatabaseSync(file);
  db.exec(`
    pragma journal_mode = wal;
    create table if not exists notes (
      id text primary key, account text not null, text text not null, created_at text not null);
    create index if not exists notes_account on notes (account, created_at);
    create table if not exists waiting_events (
      position integer primary key autoincrement, id text not null unique, kind text not null,
      account text not null, body text not null, refused text)`);

  function inTransaction<T>(work: () => T): T {
    db.exec('begin immediate');
    try {
      const result = work();
      db.exec('commit');
      return result;
    } catch (error) {
      db.exec('rollback');
      throw error;
    }
  }

  function addEvent(kind: string, account: string, body: unknown): void {
    // The id is chosen here, once: published twice, it is still one event.
    db.prepare('insert into waiting_events (id, kind, account, body) values (?, ?, ?, ?)').run(
      randomUUID(),
      kind,
      account,
      JSON.stringify(body),
    );
  }

  return {
    list(account) {
      const rows = db
        .prepare('select id, text, created_at from notes where account = ? order by created_at, id')
        .all(account);
      return rows.map((row) => ({ ...row }) as unknown as Note);
    },
    add(account, text) {
      const note: Note = { id: randomUUID(), text, created_at: new Date().toISOString() };
      inTransaction(() => {
        db.prepare('insert into notes (id, account, text, created_at) values (?, ?, ?, ?)').run(
          note.id,
          account,
          text,
          note.created_at,
        );
        addEvent('note.created', account, { note });
      });
      return note;
    },
    remove(account, id) {
      return inTransaction(() => {
        const { changes } = db.prepare('delete from notes where id = ? and account = ?').run(id, account);
        if (changes === 0) return false;
        addEvent('note.deleted', account, { note: { id } });
        return true;
      });
    },
    waitingEvents(limit) {
      const rows = db
        .prepare(
          `select id, kind, account, body from waiting_events
           where refused is null order by position limit ?`,
        )
        .all(limit) as unknown as { id: string; kind: string; account: string; body: string }[];
      return rows.map(({ body, ...event }) => ({ ...event, body: JSON.parse(body) as unknown }));
    },
    forgetEvents(ids) {
      inTransaction(() => {
        for (const id of ids) db.prepare('delete from waiting_events where id = ?').run(id);
      });
    },
    refuseEvent(id, reason) {
      db.prepare('update waiting_events set refused = ? where id = ?').run(reason, id);
    },
    close: () => db.close(),
  };
}
