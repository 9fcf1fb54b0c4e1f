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

/** A language, as it is found on this machine. */
interface Toolchain {
  language: string;
  command: string;
  version: readonly string[];
  file: string;
  /** A whole program of the code: reads the cases, and prints for each whether the signature is good. */
  program: (code: string, signature: string) => string;
  /** How a whole program is run. */
  run: (file: string) => readonly string[];
}

/** Go refuses imports that nothing uses. */
const goPackages = [
  ...[
    'bytes',
    'crypto/ed25519',
    'crypto/hmac',
    'crypto/sha256',
    'encoding/base64',
    'encoding/hex',
    'encoding/json',
  ],
  ...['fmt', 'net/http', 'os', 'strconv', 'strings', 'time'],
];

function goProgram(code: string, signature: string): string {
  const key = signature === 'ed25519' ? '' : ', each.Secret';
  const main = `
type given struct {
	Body, Secret string
	Headers      map[string]string
}

func main() {
	var cases []given
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	taken := []bool{}
	for _, each := range cases {
		header := http.Header{}
		for name, value := range each.Headers {
			header.Set(name, value)
		}
		taken = append(taken, Verify([]byte(each.Body), header${key}))
	}
	text, _ := json.Marshal(taken)
	fmt.Println(string(text))
}`;
  const used = goPackages.filter((path) => `${code}${main}`.includes(`${path.split('/').at(-1)}.`));
  return `package main\n\nimport (\n${used.map((path) => `\t"${path}"`).join('\n')}\n)\n\n${code}\n${main}\n`;
}

/** Each case is three lines of base64: the body, the header, the secret. */
function javaProgram(code: string): string {
  return `import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.*;
import java.time.Instant;
import java.util.*;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Sample {
  ${code}

  public static void main(String[] arguments) throws Exception {
    Scanner lines = new Scanner(System.in);
    List<Boolean> taken = new ArrayList<>();
    while (lines.hasNextLine()) {
      byte[] body = Base64.getDecoder().decode(lines.nextLine());
      String header = new String(Base64.getDecoder().decode(lines.nextLine()), UTF_8);
      String secret = new String(Base64.getDecoder().decode(lines.nextLine()), UTF_8);
      taken.add(verify(body, header, secret));
    }
    System.out.println(taken);
  }
}
`;
}

const toolchains: readonly Toolchain[] = [
  {
    language: 'Go',
    command: 'go',
    version: ['version'],
    file: 'sample.go',
    program: goProgram,
    run: (file) => ['run', file],
  },
  {
    language: 'Java',
    command: 'java',
    version: ['-version'],
    file: 'Sample.java',
    program: javaProgram,
    run: (file) => [file],
  },
];

const shapesOf: Readonly<Record<string, readonly string[]>> = {
  Go: ['timestamp', 'sha256', 'ed25519'],
  // The code for Ed25519 takes the request of a servlet, whose library is not here.
  Java: ['timestamp', 'sha256'],
};

for (const { language, command, version, file, program, run: commandLine } of toolchains) {
  const isThere = await run(command, [...version]).then(
    () => true,
    () => false,
  );
  for (const signature of shapesOf[language] ?? []) {
    test(`the code for ${language} takes a delivery signed by ${signature}, and no other`, {
      skip: isThere ? false : `there is no ${language} here`,
    }, async () => {
      const { received, secret } = await deliver(signature);
      const place = await mkdtemp(join(folder, 'program-'));
      const path = join(place, file);
      await writeFile(path, program(await codeOf(signature, language), signature));
      const headers = Object.fromEntries(
        Object.entries(received.headers).map(([name, value]) => [name, String(value)]),
      );
      const bodies = [received.body, received.body.replace('example', 'changed')];
      const cases = bodies.map((body) => ({ Body: body, Secret: secret, Headers: headers }));
      const lines = bodies.flatMap((body) => [body, headers['nuncio-signature'] ?? '', secret]);
      const input =
        language === 'Go'
          ? JSON.stringify(cases)
          : lines.map((line) => `${Buffer.from(line).toString('base64')}\n`).join('');
      const child = run(command, [...commandLine(path)], {
        cwd: place,
        env: { ...process.env, GO111MODULE: 'off' },
      });
      child.child.stdin?.end(input);
      assert.deepEqual(JSON.parse((await child).stdout), [true, false]);
    });
  }
}

for (const language of ['Ruby', 'PHP']) {
  test(`the code for ${language} is run`, {
    skip: `there is no ${language} where this project is tested`,
  }, () => {});
}
