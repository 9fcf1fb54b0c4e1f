/** The banner of `nuncio dev` and its start page name only what works in this installation. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import Fastify from 'fastify';
import { createTour, nextSteps } from '../../src/commands/tour.ts';
import { loadConfig } from '../../src/config/config.ts';
import type { Environment } from '../../src/config/environment.ts';
import { Type } from '../../src/index.ts';
import { createPlatform, loadPlatform, type PlatformDeclaration } from '../../src/platform.ts';
import { registerStartPage } from '../../src/web/start_page.ts';

const note = {
  name: 'note.created',
  description: 'A note was written.',
  object: 'notes',
  schema: Type.Object({}),
  example: {},
};

function bannerOf(environment: Environment, declaration: PlatformDeclaration, hasUser = true): string {
  const config = loadConfig(environment, 'dev');
  const platform = createPlatform(declaration);
  return nextSteps(config, createTour(platform, hasUser), 'demo-secret');
}

test('the banner names a kind that exists, and no demo without articles', async () => {
  const banner = bannerOf({}, { eventKinds: [note] });
  assert.match(banner, /npm run -s nuncio -- trigger note\.created/);
  assert.doesNotMatch(banner, /npm run demo|trigger push/);
  assert.doesNotMatch(bannerOf({}, {}), /trigger/);
  const example = createTour(await loadPlatform(null), true);
  assert.deepEqual([example.kind, example.demo], ['push', 'npm run demo']);
});

test('the banner names no demo user where an application signs users in', () => {
  const banner = bannerOf({}, { accounts: { login: { url: 'https://app.example.com/login' } } }, false);
  assert.match(banner, /https:\/\/app\.example\.com\/login/);
  assert.doesNotMatch(banner, /demo@example\.com|npm run demo|other computers/);
});

test('the banner names its port and the settings that other commands need', () => {
  assert.match(bannerOf({ PORT: '24123' }, {}), /Nuncio runs at +http:\/\/localhost:24123\n/);
  assert.match(bannerOf({ PORT: '24123' }, {}), /from another terminal:/);
  const all = { NUNCIO_DATA_DIR: '/srv/data', NUNCIO_CONFIG: 'other.ts', NUNCIO_DATABASE_SCHEMA: 'apps' };
  assert.match(bannerOf(all, {}), /with the same NUNCIO_DATA_DIR, NUNCIO_DATABASE_SCHEMA, NUNCIO_CONFIG:/);
  const external = bannerOf({ DATABASE_URL: 'postgres://u:hidden@127.0.0.1/x', PORT: '24123' }, {});
  assert.match(external, /with the same DATABASE_URL, PORT:/);
  assert.doesNotMatch(external, /hidden/);
});

test('the start page names a kind that exists and where users sign in', async (t) => {
  const platform = createPlatform({
    eventKinds: [note],
    accounts: { login: { url: 'http://localhost:4200/login' } },
  });
  const tour = createTour(platform, false);
  const app = Fastify().decorate('brand', platform.brand);
  t.after(() => app.close());
  registerStartPage(app, { tour, startUrl: null });
  const page = (await app.inject('/')).body;
  assert.match(page, /npm run -s nuncio -- trigger note\.created --account ID/);
  assert.match(page, /http:\/\/localhost:4200\/login/);
  assert.doesNotMatch(page, /npm run demo|demo@|other computers/);
});
