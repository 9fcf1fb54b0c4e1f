/** What a platform declares: names that are taken, and members that do not exist. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { defineChild, defineCollection, defineEventKind, defineTool, Type } from '../src/index.ts';
import { createPlatform, type PlatformDeclaration, PlatformError } from '../src/platform.ts';

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

/** Node strips types, so they do not find a misspelled, renamed or removed member. */
test('a member that does not exist stops the start, with what to write instead', () => {
  const text = { label: Type.String() };
  const thing = { name: 'things', item: 'thing', scope: 'things', fields: text, example: { label: 'One' } };
  const part = { name: 'parts', item: 'part', fields: text, example: { label: 'One' } };
  const kind = { name: 'a.b', description: 'A.', object: null, schema: Type.Object({}), example: {} };
  const versions = { '2026-01-01': { schema: Type.Object({}), from: () => ({}), sunsets: '2027-01-01' } };
  const tool = {
    ...{ name: 'look', description: 'Looks.', scope: 'read:things' as const },
    ...{ input: Type.Object({}), output: Type.Object({}), handler: () => ({}) },
  };
  const provider = { id: 'a', name: 'A', issuer: 'https://a.example', clientId: 'a', clientSecretEnv: 'A' };
  const actions = { label: { gaurd: { label: 'One' }, change: { label: 'Two' } } };
  const declared: [unknown, string][] = [
    [{ webhook: {} }, 'webhook: is not a known setting: did you mean webhooks?'],
    [{ oauth: { registrations: 'off' } }, 'oauth.registrations: … did you mean registration?'],
    [{ oauth: { toString: 1 } }, 'oauth.toString: is not a known setting; there are '],
    [{ webhooks: { adresses: [] } }, 'webhooks.adresses: … did you mean addresses?'],
    [{ webhooks: { headers: { events: 'X' } } }, 'webhooks.headers.events: … did you mean event?'],
    [{ webhooks: { quotas: { hostsRate: 1 } } }, 'webhooks.quotas.hostsRate: … did you mean hostRate?'],
    [{ apps: { reviews: true } }, 'apps.reviews: … did you mean review?'],
    [{ apps: { approval: true } }, 'apps.approval: is not a known setting; there are creation, review'],
    [{ accounts: { return: [] } }, 'accounts.return: … did you mean returnTo?'],
    [
      { accounts: { login: { url: 'https://a.example', arcValues: [] } } },
      'accounts.login.arcValues: … did you mean acrValues?',
    ],
    [
      { accounts: { upstream: [{ ...provider, clientID: 'a' }] } },
      'accounts.upstream[0].clientID: … did you mean clientId?',
    ],
    [{ mcp: { enable: true } }, 'mcp.enable: … did you mean enabled?'],
    [{ mcp: { events: { webhookIds: 'event' } } }, 'mcp.events.webhookIds: … did you mean webhookId?'],
    [{ retention: { deliveryDays: 30 } }, 'retention.deliveryDays: … did you mean deliveriesDays?'],
    [{ brand: { supportUrl: 'https://a.example' } }, 'brand.supportUrl: … did you mean support_url?'],
    [
      { collections: [defineCollection({ ...thing, filter: ['label'] } as never)] },
      'collections.things.filter: … did you mean filters?',
    ],
    [
      { collections: [defineCollection({ ...thing, actions } as never)] },
      'collections.things.actions.label.gaurd: … did you mean guard?',
    ],
    [
      {
        collections: [
          defineCollection({ ...thing, children: [defineChild({ ...part, scope: 'x' } as never)] }),
        ],
      },
      'collections.things.children.parts.scope: is not a known setting; there are ',
    ],
    [{ eventKinds: [defineEventKind({ ...kind, schemas: 1 } as never)] }, 'eventKinds.a.b.schemas: …'],
    [
      { eventKinds: [defineEventKind({ ...kind, version: '2026-06-01', versions })] },
      'eventKinds.a.b.versions.2026-01-01.sunsets: … did you mean sunset?',
    ],
    [
      { tools: [defineTool({ ...tool, openworld: false } as never)] },
      'tools.look.openworld: … did you mean openWorld?',
    ],
  ];
  for (const [declaration, expected] of declared) {
    const problem = expected.replace('…', 'is not a known setting:');
    assert.throws(
      () => createPlatform(declaration as PlatformDeclaration),
      (error) => error instanceof PlatformError && error.problems.some((line) => line.startsWith(problem)),
      expected,
    );
  }
});
