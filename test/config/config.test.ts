/** Settings: which values are accepted, and that all errors are reported at once. */

import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { pino } from 'pino';
import { ConfigError, loadConfig, type Mode } from '../../src/config/config.ts';
import { type Environment, unknownSettings } from '../../src/config/environment.ts';
import { loadSecret } from '../../src/config/secret.ts';
import { createApplication } from '../../src/http/application.ts';
import { createDatabase } from '../support/database/database.ts';
import { runCommandProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';

function problemsOf(environment: Environment, mode: Mode = 'start'): readonly string[] {
  try {
    loadConfig(environment, mode);
    return [];
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return error.problems;
  }
}

test('defaults match the documentation', () => {
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

test('an unknown setting with our prefix is a problem, except what Kubernetes sets for a service', () => {
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
    'NUNCIO_SECRETT is not a setting: did you mean NUNCIO_SECRET?',
    'NUNCIO_PORT is not a setting: did you mean PORT?',
    'NUNCIO_COLOUR_OF_THE_SEA is not a setting: see docs/settings.md',
  ]);
  assert.throws(() => loadConfig({}, 'start', unknown), { problems: unknown });
});

test('every wrong setting is reported at once, one line each', () => {
  const problems = problemsOf({
    PORT: '70000',
    NUNCIO_BASE_URL: 'https://example.com/path',
    DATABASE_URL: 'mysql://u:p4ss@h/d',
    NUNCIO_SECRET: 'short',
    NUNCIO_INSECURE_SUBSCRIBERS: 'yes',
    NUNCIO_RETRY_SCHEDULE: '5s,soon',
    NUNCIO_RATE_LIMIT: '-1',
    NUNCIO_NODE_NAME: 'two words',
    NUNCIO_TRUST_PROXY: '10.0.0.0/40',
    NUNCIO_EGRESS_PROXY: 'socks5://u:p4ss@proxy:1080',
    NUNCIO_METRICS_PORT: '0',
    NUNCIO_METRICS_TOKEN: 'p4ss',
    LOG_LEVEL: 'loud',
  });
  const named = problems.map((problem) => problem.split(' ', 1)[0]);
  assert.deepEqual(named.toSorted(), [
    'DATABASE_URL',
    'LOG_LEVEL',
    'NUNCIO_BASE_URL',
    'NUNCIO_EGRESS_PROXY',
    'NUNCIO_INSECURE_SUBSCRIBERS',
    'NUNCIO_METRICS_PORT',
    'NUNCIO_METRICS_TOKEN',
    'NUNCIO_NODE_NAME',
    'NUNCIO_RATE_LIMIT',
    'NUNCIO_RETRY_SCHEDULE',
    'NUNCIO_SECRET',
    'NUNCIO_TRUST_PROXY',
    'PORT',
  ]);
  for (const problem of problems) assert.match(problem, /^[^\n]+it must be [^\n]+$/);
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

test('start refuses a public http base URL unless the switch accepts the risk', () => {
  for (const baseUrl of ['http://api.example.com', 'http://10.0.0.5:3000', 'http://localhost.example.com']) {
    const [problem, ...more] = problemsOf({ NUNCIO_BASE_URL: baseUrl });
    assert.match(
      problem ?? '',
      /^NUNCIO_BASE_URL is "http:.*it must be an https origin.*NUNCIO_INSECURE_HTTP=1/,
    );
    assert.deepEqual(more, []);
    assert.equal(problemsOf({ NUNCIO_BASE_URL: baseUrl, NUNCIO_INSECURE_HTTP: '0' }).length, 1);
    assert.deepEqual(problemsOf({ NUNCIO_BASE_URL: baseUrl, NUNCIO_INSECURE_HTTP: '1' }), []);
    for (const mode of ['dev', 'command'] as const) {
      assert.deepEqual(problemsOf({ NUNCIO_BASE_URL: baseUrl }, mode), []);
    }
  }
  for (const baseUrl of [
    'http://localhost:3000',
    'http://127.0.0.1:3000',
    'http://[::1]',
    'http://a.localhost',
  ]) {
    assert.deepEqual(problemsOf({ NUNCIO_BASE_URL: baseUrl }), [], baseUrl);
  }
  assert.match(problemsOf({ NUNCIO_INSECURE_HTTP: 'yes' }).join(), /^NUNCIO_INSECURE_HTTP is "yes"/);
});

test('every hostile value of a setting is reported in one line that names it', () => {
  const hostile: [name: keyof Environment, ...values: string[]][] = [
    [
      'NUNCIO_TRUST_PROXY',
      ...[
        '0.0.0.0/0',
        '::/0',
        '10.0.0.0/00',
        '10.0.0.0/-1',
        '10.0.0.0/8/8',
        '10.0.0.0/',
        '/8',
        '10.0.0.0/8.0',
      ],
      ...[
        '10.0.0.0/1e1',
        '10.0.0.0/255.0.0.0',
        'fe80::1%eth0',
        'fd00::/129',
        '10.0.0.1,',
        ',',
        'loopback',
        '*',
        '010.1.1.1',
      ],
    ],
    [
      'DATABASE_URL',
      ...[
        'postgres://%ff:p4ss@h/d',
        'postgres://u:p4ss%ff@h/d',
        'postgres://u:p4ss@h/%ff',
        'postgres://u:p4ss@h:99999/d',
      ],
      ...[
        'postgres:///d?port=99999&password=p4ss',
        'postgres:///d?host=%ff',
        'postgres:///d?host=a%20b',
        'postgres:///d?port=x',
      ],
      ...['postgres://h/d?sslrootcert=/none', 'postgres://h/d?sslcert=/', 'postgres://h/d?sslkey=%00'],
    ],
    ['PORT', '-1', '65536', '1e3', '0x50', '3000.0', 'NaN', '99999999999999999999', '٣'],
    ['NUNCIO_RATE_LIMIT', '-1', '1e9', '1000000001', 'Infinity', '0x10', '1_000'],
    ['NUNCIO_CONCURRENT_REQUESTS', '-1', '10001', '1e2', 'none'],
    ['NUNCIO_CLIENT_CONNECTIONS', '-1', '1000001', '0x10', '1.5'],
    [
      'NUNCIO_RETRY_SCHEDULE',
      ',',
      '5s,',
      '0s',
      '8d',
      '99999999999s',
      '-5s',
      '5',
      '5s 5s',
      Array(21).fill('1s').join(),
    ],
    [
      'NUNCIO_BASE_URL',
      ...[
        'https://',
        'https://a b',
        'https://a:99999',
        'https://[::1',
        'javascript:alert(1)',
        '//a',
        'https://a\\b',
      ],
    ],
    [
      'NUNCIO_EGRESS_PROXY',
      'http://',
      'http://%ff@a',
      'http://u:%ff@a',
      'https://a',
      'http://a/b',
      'http://:p4ss@a',
      'http://a:99999',
    ],
    ['NUNCIO_INSECURE_SUBSCRIBERS', 'true', '01', '2', '__proto__'],
    ['LOG_LEVEL', 'INFO', 'constructor', '__proto__', '30'],
    ['NUNCIO_SECRET', 'x'.repeat(31)],
    ['NUNCIO_METRICS_PORT', '0', '65536', '-1', '1e3', 'x', '3000'],
    ['NUNCIO_METRICS_TOKEN', 'p4ss', 'p4ss'.repeat(64), 'p4ss with spaces in it', 'p4ss\u00e9'.repeat(5)],
  ];
  for (const [name, ...values] of hostile) {
    for (const value of values) {
      const problems = problemsOf({ [name]: value });
      assert.equal(problems.length, 1, `${name}=${value}`);
      assert.match(problems[0] ?? '', /^[^\n]+: it must be [^\n]+$/, value);
      assert.ok((problems[0] ?? '').startsWith(`${name} is `), problems.join());
      assert.doesNotMatch(problems.join(), /p4ss/);
    }
  }
});

test('no problem shows the password of a malformed URL', () => {
  const malformed = [
    'host=db user=nuncio password=p4ss dbname=nuncio',
    "host=db PASSWORD = 'two p4ss'",
    'postgres://nuncio:p4ss',
    'postgres://nuncio:12345p4ss',
    'postgres://nuncio:p4ss/db.example:5432/nuncio',
    'postgres://h:x/d?sslpassword=a&p4ss',
    'postgres://h:99999/d?password=a&p4ss',
    // The parser takes "nuncio" for the host and 12 for the port.
    'postgres://nuncio:12#p4ss@db.example/nuncio',
    'postgres://nuncio:12?p4ss@db.example/nuncio',
    'xp4ssxp4ssxp4ssxp4ssxp4ssxp4ssxp4ssx',
    'postgres:nuncio:p4ss',
  ];
  for (const DATABASE_URL of malformed) {
    const [problem = '', ...others] = problemsOf({ DATABASE_URL }, 'dev');
    assert.match(problem, /^DATABASE_URL is "[^\n]*": it must be a URL like /, DATABASE_URL);
    assert.deepEqual(others, []);
    assert.doesNotMatch(problem, /p4ss/);
  }
  const [port] = problemsOf({ DATABASE_URL: 'postgres://h:99999/d?user=a@b' }, 'dev');
  assert.match(port ?? '', /^DATABASE_URL is /);
  assert.deepEqual(problemsOf({ DATABASE_URL: 'postgres://h:5432/d?user=a@b' }, 'dev'), []);
});

test('every accepted proxy range works', async () => {
  const taken = [
    '10.0.0.5',
    '10.0.0.0/8',
    '0.0.0.0/1, 128.0.0.0/1',
    'fd00::/8',
    '::ffff:10.0.0.0/104',
    '::1',
    '::/1',
  ];
  for (const NUNCIO_TRUST_PROXY of taken) {
    const config = loadConfig({ NUNCIO_TRUST_PROXY }, 'start');
    await createApplication(config, pino({ level: 'silent' })).close();
  }
});

test('start reports a wrong host or proxy in one line', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const settings = { PORT: String(await freePort()), NUNCIO_SECRET: 'x'.repeat(32), LOG_LEVEL: 'silent' };
  const cases: Environment[] = [{ HOST: 'no such host' }, { NUNCIO_TRUST_PROXY: '0.0.0.0/0' }];
  for (const environment of cases) {
    const all = { ...settings, DATABASE_URL: database.url, ...environment };
    const { code, stderr } = await runCommandProcess(['start'], all);
    assert.equal(code, 1, stderr);
    assert.doesNotMatch(stderr, /\n\s+at /, stderr);
    const [name = ''] = Object.keys(environment);
    assert.match(
      stderr,
      name === 'NUNCIO_CONFIG' ? /^nuncio: \// : new RegExp(`^nuncio: ${name} is "`),
      stderr,
    );
  }
});

test('insecure subscribers are refused on a public https origin and never the default there', () => {
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

test('an external database requires a secret in production, and not in development', () => {
  const DATABASE_URL = 'postgres://localhost/nuncio';
  assert.match(problemsOf({ DATABASE_URL }).join(), /^NUNCIO_SECRET is not set/);
  assert.deepEqual(problemsOf({ DATABASE_URL }, 'dev'), []);
  assert.deepEqual(problemsOf({ DATABASE_URL, NUNCIO_SECRET: 'x'.repeat(32) }), []);
});

test('a generated secret is stored, stays the same, and only its owner can read it', async (t) => {
  const NUNCIO_DATA_DIR = await temporaryFolder(t);
  const config = loadConfig({ NUNCIO_DATA_DIR }, 'dev');
  const secret = loadSecret(config);
  assert.ok(secret.length >= 32);
  assert.deepEqual(loadSecret(config), secret);
  const file = join(NUNCIO_DATA_DIR, 'secret');
  assert.equal(statSync(file).mode & 0o777, 0o600);
  assert.equal(readFileSync(file, 'utf8').trim(), secret.toString());
});

test('the SMTP URL and the sender of mail are checked, and a password is not repeated', () => {
  const production = { NUNCIO_CONFIG: 'nuncio.config.ts', NUNCIO_BASE_URL: 'https://api.acme.example' };
  const { smtpUrl, mailFrom } = loadConfig(production, 'start');
  assert.deepEqual([smtpUrl, mailFrom], [null, 'no-reply@api.acme.example']);
  for (const url of [
    'smtp://mail.acme.example',
    'smtps://user:p%40ss%2Fword@mail.acme.example:465',
    'smtp://127.0.0.1:1025/',
    'smtp://[::1]:25',
  ]) {
    assert.equal(loadConfig({ ...production, NUNCIO_SMTP_URL: url }, 'start').smtpUrl, url);
  }
  for (const url of [
    'mail.acme.example',
    'https://mail.acme.example',
    'smtp://',
    'smtp://hunter2@mail.acme.example',
    'smtp://user:hunter2@mail.acme.example/path',
    'smtp://user:hunter2@mail.acme.example?tls.rejectUnauthorized=false',
    'smtp://user:hunter2%@mail.acme.example',
    'smtp://user:hunter2@mail.acme.example:0',
  ]) {
    const problems = problemsOf({ ...production, NUNCIO_SMTP_URL: url });
    assert.match(problems.join('\n'), /^NUNCIO_SMTP_URL is invalid: it must be a URL like smtp:/, url);
    assert.doesNotMatch(problems.join('\n'), /hunter2/);
  }
  for (const from of ['Acme <a@acme.example>', 'a@b,c@d', 'acme.example', 'a\r\nBcc: b@c.example']) {
    const problems = problemsOf({ ...production, NUNCIO_MAIL_FROM: from });
    assert.match(problems.join('\n'), /^NUNCIO_MAIL_FROM is .*: it must be an e-mail address/, from);
  }
  const byAddress = { NUNCIO_CONFIG: 'nuncio.config.ts', NUNCIO_BASE_URL: 'https://203.0.113.7' };
  assert.match(
    problemsOf({ ...byAddress, NUNCIO_SMTP_URL: 'smtp://mail.acme.example' }).join(),
    /^NUNCIO_MAIL_FROM is not set/,
  );
});
