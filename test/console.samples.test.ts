/** The code that the console shows for verifying deliveries: it takes what this server signs, and nothing else. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { samplesFor } from '../src/console/pages/subscriptions/verification_code.ts';
import { createConsoleUser } from './support/console.ts';
import { startTestServer } from './support/server.ts';
import { type Received, startSubscriber } from './support/subscriber.ts';
import { createPublisher, publish, subscribe } from './support/webhooks.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const folder = await mkdtemp(join(tmpdir(), 'nuncio-samples-'));
after(() => rm(folder, { recursive: true, force: true }));
const modules = await realpath(join(import.meta.dirname, '..', 'node_modules'));
await symlink(modules, join(folder, 'node_modules'));

/** One delivery with a signature of the shape, and the secret that signed it. */
async function deliver(signature: string): Promise<{ received: Received; secret: string }> {
  const subscriber = await startSubscriber({ after });
  const user = await createConsoleUser(server);
  const { secret } = await subscribe(user, { url: subscriber.url, signature });
  await publish(publisher, user.account, [`ünïcödé ${signature}`]);
  const [received] = await subscriber.waitFor(1);
  return { received: received as Received, secret };
}

async function codeOf(signature: string, language: string): Promise<string> {
  const meta = (await (await fetch(`${server.baseUrl}/meta`)).json()) as {
    headers: { signature: string };
    public_keys: { key: string }[];
  };
  const facts = { headers: meta.headers, publicKey: meta.public_keys[0]?.key ?? '' };
  const sample = samplesFor(signature, facts).find((each) => each.language === language);
  return sample?.code ?? '';
}

type Verify = (body: string, headers: Record<string, unknown>, secret: string) => unknown;

function isTaken(verify: Verify, ...parameters: Parameters<Verify>): boolean {
  try {
    return verify(...parameters) !== false;
  } catch {
    return false;
  }
}

for (const signature of ['timestamp', 'sha256', 'standard', 'ed25519']) {
  test(`the code for Node.js takes a delivery signed by ${signature}, and no other`, async () => {
    const { received, secret } = await deliver(signature);
    const file = join(folder, `${signature}.mjs`);
    await writeFile(file, await codeOf(signature, 'Node.js'));
    const { verify } = (await import(pathToFileURL(file).href)) as { verify: Verify };
    const { body, headers } = received;
    assert.ok(isTaken(verify, body, headers, secret));
    assert.ok(!isTaken(verify, body.replace('example', 'changed'), headers, secret));
    if (signature === 'ed25519') return;
    const other = `whsec_${Buffer.alloc(32, 1).toString('base64')}`;
    assert.ok(!isTaken(verify, body, headers, other));
  });
}

test('there is code for six languages in each shape', () => {
  const facts = { headers: { signature: 'Nuncio-Signature' }, publicKey: 'whpk_x' };
  for (const signature of ['timestamp', 'sha256', 'standard', 'ed25519']) {
    const languages = samplesFor(signature, facts).map(({ language }) => language);
    assert.deepEqual(languages, ['Node.js', 'Python', 'Go', 'Ruby', 'PHP', 'Java']);
  }
});

const run = promisify(execFile);
const hasPython = await run('python3', ['--version']).then(
  () => true,
  () => false,
);

for (const signature of ['timestamp', 'sha256']) {
  test(`the code for Python takes a delivery signed by ${signature}, and no other`, {
    skip: hasPython ? false : 'there is no Python here',
  }, async () => {
    const { received, secret } = await deliver(signature);
    const code = await codeOf(signature, 'Python');
    const named = 'Nuncio-Signature';
    const headers = { [named]: received.headers[named.toLowerCase()] };
    const program = `${code}

import json, sys
given = json.loads(sys.stdin.read())
print(json.dumps([verify(body.encode(), given["headers"], given["secret"]) for body in given["bodies"]]))
`;
    const child = run('python3', ['-c', program]);
    const bodies = [received.body, received.body.replace('example', 'changed')];
    child.child.stdin?.end(JSON.stringify({ headers, secret, bodies }));
    assert.deepEqual(JSON.parse((await child).stdout), [true, false]);
  });
}
