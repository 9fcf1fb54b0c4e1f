/** PostgreSQL's messages are in the language of `lc_messages`. Its binaries for npm know English only, so a proxy translates. */

import assert from 'node:assert/strict';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { openTestDatabase } from '../support/database/open_database.ts';

/** Texts of the same length, so that the messages of the protocol keep theirs. */
const translations = [
  ['cached plan must not change result type', 'Ergebnistyp des Plans darf sich nie aend'.slice(0, 39)],
] as const;

async function openTranslated(t: TestContext) {
  const { db, url } = await openTestDatabase(t, 2);
  const inside = await startDatabaseProxy(url);
  const { port } = new URL(inside.url);
  const sockets: Socket[] = [];
  let count = 0;
  const proxy = createServer((inner) => {
    const outer = connect(Number(port), '127.0.0.1');
    sockets.push(inner, outer);
    inner.pipe(outer);
    outer.on('data', (bytes) => {
      let text = bytes.toString('latin1');
      for (const [english, german] of translations) {
        assert.equal(english.length, german.length);
        if (text.includes(english)) count += 1;
        text = text.replaceAll(english, german);
      }
      inner.write(text, 'latin1');
    });
    for (const socket of [inner, outer]) {
      socket.on('error', () => {});
      socket.on('close', () => {
        inner.destroy();
        outer.destroy();
      });
    }
  });
  await new Promise<void>((done) => proxy.listen(0, '127.0.0.1', done));
  const translatedUrl = new URL(inside.url);
  translatedUrl.port = String((proxy.address() as AddressInfo).port);
  const translated = openDatabase({ connectionString: translatedUrl.href, connectionsMax: 1 });
  t.after(async () => {
    await translated.destroy();
    for (const socket of sockets) socket.destroy();
    proxy.close();
    await inside.close();
  });
  return { db, translated, translatedCount: () => count };
}

test('a statement is prepared again after a migration when messages are in another language', async (t) => {
  const { db, translated, translatedCount } = await openTranslated(t);
  await sql`create table things (id int)`.execute(db);
  await sql`insert into things values (1)`.execute(db);
  const read = () => sql`select * from things where id = ${1}::int`.execute(translated);
  assert.deepEqual((await read()).rows, [{ id: 1 }]);
  await sql`alter table things add column name text`.execute(db);
  assert.deepEqual((await read()).rows, [{ id: 1, name: null }]);
  assert.ok(translatedCount() > 0);
});
