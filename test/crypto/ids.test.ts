/** Identifiers sort by the time of their creation. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isId, newId } from '../../src/crypto/ids.ts';

test('ids are unique UUIDv7 in creation order', () => {
  const startedAt = Date.now();
  const ids = Array.from({ length: 200_000 }, newId);
  for (const [index, id] of ids.entries()) {
    assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.ok(isId(id));
    if (index > 0) assert.ok(id > (ids[index - 1] as string));
  }
  const time = Number.parseInt((ids[0] as string).replaceAll('-', '').slice(0, 12), 16);
  assert.ok(time >= startedAt && time <= Date.now());
});
