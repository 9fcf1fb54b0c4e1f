/** Settings: what is taken, and that everything wrong is named at once. */

import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ConfigError, loadConfig, type Mode } from '../src/config/config.ts';
import { type Environment, unknownSettings } from '../src/config/environment.ts';
import { loadSecret } from '../src/config/secret.ts';
import { temporaryFolder } from './support/process.ts';

function problemsOf(environment: Environment, mode: Mode = 'start'): readonly string[] {
  try {
    loadConfig(environment, mode);
    return [];
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return error.problems;
  }
}

test('defaults are those of the documents', () => {
  const config = loadConfig({}, 'start');
  assert.equal(config.baseUrl, 'http://localhost:3000');
  assert.equal(config.host, '0.0.0.0');
  assert.equal(config.rateLimitPerMinute, 600);
  assert.equal(config.insecureSubscribers, false);
  assert.deepEqual(
    config.retryScheduleSeconds,
    [5, 30, 120, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 86_400],
  );
  assert.equal(loadConfig({}, 'dev').host, '127.0.0.1');
  assert.equal(loadConfig({}, 'dev').insecureSubscribers, true);
  assert.equal(loadConfig({ PORT: '8080' }, 'dev').baseUrl, 'http://localhost:8080');
});

test('names that begin like settings and are none are problems; what Kubernetes sets for a service is not', () => {
  const unknown = unknownSettings({
    NUNCIO_SECRETT: 'x',
    NUNCIO_PORT: '8080',
    NUNCIO_COLOUR_OF_THE_SEA: 'x',
    NUNCIO_CONFIG: 'x',
    NUNCIO_SERVICE_HOST: '10.0.0.1',
    NUNCIO_SERVICE_PORT_HTTP: '3000',
    NUNCIO_WEB_PORT: 'tcp://10.0.0.1:3000',
    NUNCIO_PORT_3000_TCP_ADDR: '10.0.0.1',
    OTHER: 'x',
  });
  assert.deepEqual(unknown, [
    'NUNCIO_SECRETT is not a setting: NUNCIO_SECRET may be meant',
    'NUNCIO_PORT is not a setting: PORT may be meant',
    'NUNCIO_COLOUR_OF_THE_SEA is not a setting: see docs/settings.md',
  ]);
  assert.throws(() => loadConfig({}, 'start', unknown), { problems: unknown });
});

test('every wrong setting is named at once, each in one line', () => {
  const problems = problemsOf({
    PORT: '70000',
    NUNCIO_BASE_URL: 'https://example.com/path',
    DATABASE_URL: 'mysql://u:p4ss@h/d',
    NUNCIO_SECRET: 'short',
    NUNCIO_INSECURE_SUBSCRIBERS: 'yes',
    NUNCIO_RETRY_SCHEDULE: '5s,soon',
    NUNCIO_RATE_LIMIT: '-1',
    NUNCIO_TRUST_PROXY: '10.0.0.0/40',
    NUNCIO_EGRESS_PROXY: 'socks5://u:p4ss@proxy:1080',
    LOG_LEVEL: 'loud',
  });
  const named = problems.map((problem) => problem.split(' ', 1)[0]);
  assert.deepEqual(named.toSorted(), [
    'DATABASE_URL',
    'LOG_LEVEL',
    'NUNCIO_BASE_URL',
    'NUNCIO_EGRESS_PROXY',
    'NUNCIO_INSECURE_SUBSCRIBERS',
    'NUNCIO_RATE_LIMIT',
    'NUNCIO_RETRY_SCHEDULE',
    'NUNCIO_SECRET',
    'NUNCIO_TRUST_PROXY',
    'PORT',
  ]);
  for (const problem of problems) assert.match(problem, /^[^\n]+it may be [^\n]+$/);
  assert.doesNotMatch(problems.join('\n'), /p4ss|short/);
});

test('a base URL is an origin', () => {
  for (const wrong of [
    'example.com',
    'ftp://example.com',
    'https://u:p@example.com',
    'https://example.com/?a',
    'https://example.com/#a',
  ]) {
    assert.equal(problemsOf({ NUNCIO_BASE_URL: wrong }).length, 1, wrong);
  }
  assert.equal(
    loadConfig({ NUNCIO_BASE_URL: 'https://API.example.com:443/' }, 'start').baseUrl,
    'https://api.example.com',
  );
});

test('insecure subscribers are refused on a public https origin, and never the default there', () => {
  const environment = { NUNCIO_BASE_URL: 'https://api.example.com' };
  assert.match(
    problemsOf({ ...environment, NUNCIO_INSECURE_SUBSCRIBERS: '1' }).join(),
    /^NUNCIO_INSECURE_SUBSCRIBERS is "1"/,
  );
  assert.equal(loadConfig(environment, 'dev').insecureSubscribers, false);
  assert.equal(
    loadConfig({ NUNCIO_BASE_URL: 'https://localhost:8443', NUNCIO_INSECURE_SUBSCRIBERS: '1' }, 'start')
      .insecureSubscribers,
    true,
  );
});

test('an external database needs a secret in production, and not in development', () => {
  const DATABASE_URL = 'postgres://localhost/nuncio';
  assert.match(problemsOf({ DATABASE_URL }).join(), /^NUNCIO_SECRET is not set/);
  assert.deepEqual(problemsOf({ DATABASE_URL }, 'dev'), []);
  assert.deepEqual(problemsOf({ DATABASE_URL, NUNCIO_SECRET: 'x'.repeat(32) }), []);
});

test('a made secret is kept, stays the same, and is readable by its owner alone', async (t) => {
  const NUNCIO_DATA_DIR = await temporaryFolder(t);
  const config = loadConfig({ NUNCIO_DATA_DIR }, 'dev');
  const secret = loadSecret(config);
  assert.ok(secret.length >= 32);
  assert.deepEqual(loadSecret(config), secret);
  const file = join(NUNCIO_DATA_DIR, 'secret');
  assert.equal(statSync(file).mode & 0o777, 0o600);
  assert.equal(readFileSync(file, 'utf8').trim(), secret.toString());
});
