/** Changed schemas at the start: compared with those of earlier starts, and with stored events. */

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import type { TSchema } from 'typebox';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { appendEvent } from '../../src/events/event.ts';
import type { EventKind } from '../../src/events/kind.ts';
import { checkSchemaHistory } from '../../src/events/schema_history.ts';
import { defineEventKind, Type } from '../../src/index.ts';
import { createDatabase } from '../support/database/database.ts';
import {
  prepareProcess,
  runCommandProcess,
  startProcess,
  temporaryFolder,
} from '../support/servers/process.ts';

async function openTestDatabase(t: TestContext): Promise<Database> {
  const { url, drop } = await createDatabase();
  const db = openDatabase({ connectionString: url, connectionsMax: 2 });
  t.after(async () => {
    await db.destroy();
    await drop();
  });
  return db;
}

const start = (db: Database, ...kinds: EventKind[]) =>
  checkSchemaHistory(db, kinds, (message) => assert.fail(message));

const store = (db: Database, body: unknown, version: string | null = null) =>
  db.transaction().execute((tx) => appendEvent(tx, { accountId: null, kind: 'paid', version, body }));

/** A kind with the schema and example, and what else is given. */
function paid(schema: TSchema, example: unknown, more: Partial<EventKind> = {}): EventKind {
  return defineEventKind({ name: 'paid', description: '', object: null, schema, example, ...more });
}

const first = {
  schema: Type.Object({ id: Type.String(), cents: Type.Integer() }),
  example: { id: 'a', cents: 5 },
};
const second = {
  schema: Type.Object({ id: Type.String(), euros: Type.Number() }),
  example: { id: 'a', euros: 0.05 },
};
const third = {
  schema: Type.Object({ id: Type.String(), total: Type.Object({ cents: Type.Integer() }) }),
  example: { id: 'a', total: { cents: 5 } },
};

test('a breaking change is named in plain words and stored nowhere, until it is a new version', async (t) => {
  const db = await openTestDatabase(t);
  assert.deepEqual(await start(db, paid(first.schema, first.example)), []);
  const id = await store(db, first.example);
  const changed = paid(second.schema, second.example);
  for (let count = 0; count < 2; count += 1) {
    const [problem, ...others] = await start(db, changed);
    assert.deepEqual(others, []);
    assert.match(
      problem ?? '',
      /^eventKinds\.paid: the schema changed in a way that breaks subscribers: \/cents was removed; /,
    );
    assert.match(
      problem ?? '',
      new RegExp(`the former example does not match it any more: .*euros.*; the stored event ${id} does`),
    );
    assert.match(
      problem ?? '',
      /Declare the new schema as a new version, and keep the former one in versions$/,
    );
  }
  const from = ({ id, euros }: { id: string; euros: number }) => ({ id, cents: euros * 100 });
  const versions = { '2026-01-01': { schema: first.schema, from } };
  assert.deepEqual(
    await start(db, paid(second.schema, second.example, { version: '2026-10-01', versions })),
    [],
  );
  // Neither version may change now.
  const both = { ...versions, '2026-01-01': { schema: third.schema, from: () => third.example } };
  const [earlier] = await start(
    db,
    paid(second.schema, second.example, { version: '2026-10-01', versions: both }),
  );
  assert.match(earlier ?? '', /the schema of version 2026-01-01 changed .*\/cents was removed/);
  const [newest] = await start(db, paid(third.schema, third.example, { version: '2026-10-01', versions }));
  assert.match(newest ?? '', /the schema of version 2026-10-01 changed .*\/euros was removed/);
});

test('a first version must describe the body that the kind had', async (t) => {
  const db = await openTestDatabase(t);
  assert.deepEqual(await start(db, paid(first.schema, first.example)), []);
  await store(db, first.example);
  const [problem] = await start(db, paid(second.schema, second.example, { version: '2026-10-01' }));
  assert.match(problem ?? '', /of version 2026-10-01 changed .*\/cents was removed/);
  assert.deepEqual(await start(db, paid(first.schema, first.example, { version: '2026-10-01' })), []);
});

test('a stored event that the schema refuses stops the start, one of another version does not', async (t) => {
  const db = await openTestDatabase(t);
  const loose = { version: '2026-01-01' };
  assert.deepEqual(await start(db, paid(first.schema, first.example, loose)), []);
  const tight = Type.Object({ id: Type.String(), cents: Type.Integer({ maximum: 9 }) });
  await store(db, { id: 'b', cents: 10 }, '2025-01-01');
  await store(db, { id: 'b', cents: 9 }, '2026-01-01');
  assert.deepEqual(await start(db, paid(tight, first.example, loose)), []);
  const tighter = Type.Object({ id: Type.String(), cents: Type.Integer({ maximum: 8 }) });
  const [problem] = await start(db, paid(tighter, first.example, loose));
  assert.match(
    problem ?? '',
    /: the stored event \S+ does not match it any more: \/cents must be <= 8\. Declare/,
  );
});

test('without events and subscriptions nobody depends on a kind, so it may change', async (t) => {
  const db = await openTestDatabase(t);
  assert.deepEqual(await start(db, paid(first.schema, first.example)), []);
  assert.deepEqual(await start(db, paid(second.schema, second.example)), []);
  await sql`
    insert into subscriptions (id, lane, owner, client_id, url, kinds, signature, secret)
    values (gen_random_uuid(), 7, 'client', 'app', 'https://app.example/', '{*}', 'sha256', '')`.execute(db);
  const [problem] = await start(db, paid(third.schema, third.example));
  assert.match(problem ?? '', /\/euros was removed/);
  await sql`update subscriptions set state = 'ended'`.execute(db);
  assert.deepEqual(await start(db, paid(third.schema, third.example)), []);
});

test('nodes of an older and a newer configuration start in any order', async (t) => {
  const db = await openTestDatabase(t);
  const old = paid(first.schema, first.example);
  const added = Type.Object({ id: Type.String(), cents: Type.Integer(), tax: Type.Optional(Type.Integer()) });
  await store(db, first.example);
  for (const kind of [old, paid(added, first.example), old, paid(added, first.example), old])
    assert.deepEqual(await start(db, kind), []);
  const together = await Promise.all(
    [1, 2, 3, 4].map(() => start(db, paid(third.schema, third.example, { name: 'other' }))),
  );
  assert.deepEqual(together, [[], [], [], []]);
});

test('a database that is too slow gives a warning, and the schemas are still compared', async (t) => {
  const db = await openTestDatabase(t);
  assert.deepEqual(await start(db, paid(first.schema, first.example)), []);
  await store(db, first.example);
  const { promise: locked, resolve } = Promise.withResolvers<void>();
  const { promise: done, resolve: release } = Promise.withResolvers<void>();
  const holding = db.transaction().execute(async (tx) => {
    await sql`lock table events in access exclusive mode`.execute(tx);
    resolve();
    await done;
  });
  await locked;
  const warnings: string[] = [];
  const added = Type.Object({ id: Type.String(), cents: Type.Integer(), tax: Type.Optional(Type.Integer()) });
  assert.deepEqual(
    await checkSchemaHistory(db, [paid(added, first.example)], (text) => warnings.push(text)),
    [],
  );
  assert.match(warnings.join(), /too slow/);
  release();
  await holding;
});

test('the server does not start with a breaking change, and says what is wrong', async (t) => {
  const folder = await temporaryFolder(t);
  const file = join(folder, 'nuncio.config.ts');
  const entry = fileURLToPath(new URL('../../src/index.ts', import.meta.url));
  const declare = (members: string, example: string) =>
    writeFile(
      file,
      `import { defineConfig, defineEventKind, Type } from '${entry}';
       export default defineConfig({ eventKinds: [defineEventKind({ name: 'paid', description: '', object: null,
         schema: Type.Object({ ${members} }), example: { ${example} } })] });`,
    );
  const host = await prepareProcess(t, { NUNCIO_CONFIG: file });
  await declare('cents: Type.Integer()', 'cents: 5');
  const server = startProcess(t, ['start'], host.settings, [], undefined, folder);
  await server.ready();
  assert.equal(await server.end('SIGTERM'), 0);
  await store(host.db, { cents: 5 });
  await declare('euros: Type.Number()', 'euros: 1');
  for (const words of [['start'], ['start', '--no-migrate']]) {
    const failed = await runCommandProcess(words, host.settings, folder);
    assert.equal(failed.code, 1);
    assert.match(
      failed.stderr,
      /^nuncio: eventKinds\.paid: the schema changed in a way that breaks subscribers: \/cents was removed; [^\n]+\n$/,
    );
  }
});
