/**
 * Stores the notes in the API's own database. Each change appends its event to the outbox in the same transaction, so no
 * event is lost, and no event describes a change that was rolled back.
 */

import { randomUUID } from 'node:crypto';
import type { DatabaseSync } from 'node:sqlite';
import type { SqliteOutbox } from '../../src/outbox/outbox.ts';

export interface Note {
  id: string;
  text: string;
  created_at: string;
}

export interface Store {
  list(account: string): Note[];
  add(account: string, text: string): Note;
  /** @returns whether the account had the note */
  remove(account: string, id: string): boolean;
}

export function openStore(db: DatabaseSync, outbox: SqliteOutbox): Store {
  db.exec(`
    create table if not exists notes (
      id text primary key, account text not null, text text not null, created_at text not null);
    create index if not exists notes_account on notes (account, created_at)`);

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

  return {
    list(account) {
      const rows = db
        .prepare('select id, text, created_at from notes where account = ? order by created_at, id')
        .all(account);
      // SQLite's rows have no type; the statement selects the members of a note.
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
        outbox.append(db, { kind: 'note.created', account, body: { note } });
      });
      return note;
    },
    remove(account, id) {
      return inTransaction(() => {
        const { changes } = db.prepare('delete from notes where id = ? and account = ?').run(id, account);
        if (changes === 0) return false;
        outbox.append(db, { kind: 'note.deleted', account, body: { note: { id } } });
        return true;
      });
    },
  };
}
