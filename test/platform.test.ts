/** A declared collection cannot use the name of a table of the server. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { defineCollection, Type } from '../src/index.ts';
import { createPlatform } from '../src/platform.ts';

test('a collection cannot have the name of any table of the server', () => {
  const folder = new URL('../migrations/', import.meta.url);
  const text = readdirSync(folder)
    .map((name) => readFileSync(new URL(name, folder), 'utf8'))
    .join('\n');
  const tables = new Set([...text.matchAll(/^create table (\w+)/gm)].map(([, name = '']) => name));
  assert.ok(tables.size > 30);
  const isTaken = (name: string) => {
    const things = defineCollection({
      name,
      item: 'thing',
      scope: 'things',
      fields: { label: Type.String() },
      example: { label: 'One' },
    });
    try {
      createPlatform({ collections: [things] });
      return false;
    } catch (error) {
      return String(error).includes('.name: is reserved for the server');
    }
  };
  assert.deepEqual(
    [...tables].filter((name) => !isTaken(name)),
    [],
  );
});
