/** The files of `deploy/`, the Dockerfile and compose.yaml, checked by the tools of their formats. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { unknownSettings } from '../../src/config/environment.ts';
import { prepareGoTool } from '../support/programs/go_tool.ts';
import { preparePython } from '../support/programs/python.ts';

const run = promisify(execFile);
const checkout = join(import.meta.dirname, '../..');
const chart = join(checkout, 'deploy/helm/nuncio');
const folder = await mkdtemp(join(tmpdir(), 'nuncio-deployment-'));
after(() => rm(folder, { recursive: true, force: true }));

const python = await preparePython(join(import.meta.dirname, '../support/programs/lint_requirements.txt'));
const helm = await prepareGoTool('helm.sh/helm/v3/cmd/helm', 'v3.22.0');
const noPython = 'missing' in python ? python.missing : false;
const noHelm = 'missing' in helm ? helm.missing : false;

const required = ['--set', 'baseUrl=https://id.example.com,existingSecret=nuncio'];
const everything = [
  ...required,
  ...['--set', 'trustProxy=10.0.0.0/8,ingress.enabled=true,ingress.tlsSecret=tls,networkPolicy.enabled=true'],
  ...['--set', 'env.NUNCIO_RATE_LIMIT=1200,replicas=3', '--set-file', 'config=nuncio.config.ts'],
];

async function output(program: string, words: string[]): Promise<string> {
  const { stdout, stderr } = await run(program, words, { cwd: checkout }).catch((error) => error);
  return stdout + stderr;
}

function template(values: string[]): Promise<string> {
  const program = 'program' in helm ? helm.program : '';
  return output(program, ['template', 'one', chart, '--kube-version', 'v1.34.0', ...values]);
}

test('hadolint finds nothing in the Dockerfile', { skip: noPython }, async () => {
  const hadolint = 'bin' in python ? python.bin('hadolint') : '';
  assert.equal(await output(hadolint, ['Dockerfile']), '');
  const wrong = join(folder, 'Dockerfile');
  await writeFile(wrong, `${await readFile(join(checkout, 'Dockerfile'), 'utf8')}\nRUN sudo ls\n`);
  assert.match(await output(hadolint, [wrong]), /sudo/);
});

test('compose.yaml fits the schema of its format', { skip: noPython }, async () => {
  const check = 'bin' in python ? python.bin('check-jsonschema') : '';
  const words = ['--builtin-schema', 'vendor.compose-spec'];
  assert.match(await output(check, [...words, 'compose.yaml']), /^ok/);
  const wrong = join(folder, 'compose.yaml');
  const text = await readFile(join(checkout, 'compose.yaml'), 'utf8');
  await writeFile(wrong, text.replace('read_only: true', 'readonly: true'));
  assert.match(await output(check, [...words, wrong]), /readonly/);
});

test('helm finds nothing in the chart, and says which values are missing', { skip: noHelm }, async () => {
  const program = 'program' in helm ? helm.program : '';
  const lint = await output(program, ['lint', '--strict', chart, ...required]);
  assert.match(lint, /0 chart\(s\) failed/);
  assert.match(await template([]), /baseUrl is required, such as/);
  assert.match(await template(['--set', 'baseUrl=https://id.example.com']), /existingSecret is required/);
});

test('what the chart makes fits the schemas of Kubernetes', { skip: noHelm || noPython }, async () => {
  const validate = 'bin' in python ? python.bin('kubernetes-validate') : '';
  for (const [name, values] of Object.entries({ required, everything })) {
    const file = join(folder, `${name}.yaml`);
    await writeFile(file, await template(values));
    const found = await output(validate, ['--strict', file]);
    const kinds = (await readFile(file, 'utf8')).match(/^kind: /gm)?.length ?? 0;
    assert.equal(found.match(/ passed for resource /g)?.length, kinds, found);
    assert.ok(kinds >= 5, `${kinds} resources`);
  }
});

test('the nodes of the chart are unprivileged and have no writable files', { skip: noHelm }, async () => {
  const made = await template(everything);
  const containers = made.match(/^ +- name: (nuncio|migrate)$/gm)?.length;
  assert.equal(containers, 2);
  for (const line of [
    'runAsNonRoot: true',
    'readOnlyRootFilesystem: true',
    'allowPrivilegeEscalation: false',
    'drop: [ALL]',
    'type: RuntimeDefault',
  ])
    assert.equal(made.split(line).length - 1, containers, line);
  assert.doesNotMatch(made, /kind: Secret\b/);
  assert.match(made, /kind: PodDisruptionBudget[\s\S]*?maxUnavailable: 1/);
  // One node could never be evicted, or could always be.
  assert.doesNotMatch(await template([...required, '--set', 'replicas=1']), /PodDisruptionBudget/);
});

test('the settings in the deployment files are settings of the server', async () => {
  const texts = await Promise.all(
    [
      'Dockerfile',
      'compose.yaml',
      'deploy/compose.env.example',
      'deploy/systemd/nuncio.service',
      'deploy/helm/nuncio/templates/_helpers.tpl',
      'deploy/helm/nuncio/templates/deployment.yaml',
    ].map((path) => readFile(join(checkout, path), 'utf8')),
  );
  const named = texts.flatMap((text) => text.match(/(?<![\w./])NUNCIO_[A-Z_]+(?=[=:]|\n| )/g) ?? []);
  const wanted = [...new Set(named)];
  assert.ok(wanted.length >= 7, String(wanted));
  assert.deepEqual(unknownSettings(Object.fromEntries(wanted.map((name) => [name, 'x']))), []);
});

test('systemd accepts the unit and finds it well confined', async (t) => {
  const unit = join(checkout, 'deploy/systemd/nuncio.service');
  const version = await run('systemd-analyze', ['--version']).catch(() => undefined);
  if (version === undefined) return t.skip('systemd-analyze is not installed');
  // The program of the unit need not be installed here.
  const text = (await readFile(unit, 'utf8')).replace(
    'ExecStart=/usr/bin/node',
    `ExecStart=${process.execPath}`,
  );
  const copy = join(folder, 'nuncio.service');
  await writeFile(copy, text);
  assert.equal(await output('systemd-analyze', ['verify', '--man=no', copy]), '');
  const security = await output('systemd-analyze', ['security', '--offline=true', '--threshold=20', copy]);
  const [, exposure = '10'] = /exposure level for \S+: (\S+)/.exec(security) ?? [];
  assert.ok(Number(exposure) <= 2, security);
  await writeFile(copy, text.replace('NoNewPrivileges=', 'NoNewPrivilege='));
  assert.match(await output('systemd-analyze', ['verify', '--man=no', copy]), /NoNewPrivilege\b/);
});
