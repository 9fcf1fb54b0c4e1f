/** The code that the console shows for verifying deliveries: it accepts what this server signs, and nothing else. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { samplesFor } from '../../src/console/pages/subscriptions/verification_code.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { preparePython } from '../support/programs/python.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, publish, subscribe } from '../support/webhooks/apps.ts';
import { type Received, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const folder = await mkdtemp(join(tmpdir(), 'nuncio-samples-'));
after(() => rm(folder, { recursive: true, force: true }));
const modules = await realpath(join(import.meta.dirname, '../../node_modules'));
await symlink(modules, join(folder, 'node_modules'));

/** Returns one delivery with the given signature, and the secret that signed it. */
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

const shapes = ['timestamp', 'sha256', 'standard', 'ed25519'] as const;
type Shape = (typeof shapes)[number];

interface Case {
  body: string;
  /** Received headers, with names in any case. */
  headers: Record<string, string>;
  secret: string;
}

interface Cases {
  taken: Case[];
  refused: Case[];
}

/** Returns cases for a receiver: a real delivery, and manipulated copies of it. */
function casesOf(signature: Shape, { body, headers: came }: Received, secret: string): Cases {
  const headers = Object.fromEntries(
    Object.entries(came)
      .filter(([name]) => /^(nuncio|webhook)-/.test(name))
      .map(([name, value]) => [name, String(value)]),
  );
  const isStandard = signature === 'standard' || signature === 'ed25519';
  const name = isStandard ? 'webhook-signature' : 'nuncio-signature';
  const value = headers[name] as string;
  const genuine = { body, headers, secret };
  const { [name]: _signature, ...unsigned } = headers;
  const withValue = (text: string) => ({ ...genuine, headers: { ...headers, [name]: text } });
  const old = String(Math.floor(Date.now() / 1_000) - 3_600);
  const otherSecret = `whsec_${Buffer.alloc(32, 1).toString('base64')}`;
  return {
    taken: [
      genuine,
      // Frameworks spell the names in any case.
      { ...genuine, headers: withNames(headers, (name) => name.toUpperCase()) },
      {
        ...genuine,
        headers: withNames(headers, (name) => name.replaceAll(/\b[a-z]/g, (letter) => letter.toUpperCase())),
      },
      // With a second signature by another secret, as during rotation.
      ...(isStandard
        ? [withValue(`v1,AAAA v1a,AAAA v1a,!! ${value}`)]
        : signature === 'timestamp'
          ? [withValue(value.replace(',v1=', `,v1=${'0'.repeat(64)},v1=zz,v1,v1=`))]
          : []),
    ],
    refused: [
      { ...genuine, body: body.replace('example', 'changed') },
      { ...genuine, body: '' },
      ...(signature === 'ed25519' ? [] : [{ ...genuine, secret: otherSecret }]),
      { ...genuine, headers: unsigned },
      ...['', ',', '=', 'v1', 'v1=', 'v1a', 't', 't=,v1=', 't=x,v1=zz', `t=${'9'.repeat(400)},v1=00`].map(
        withValue,
      ),
      ...['v1,', 'v1a,', 'v1a,AAAA', 'v1a,!!', 'sha256=', 'sha256=zz', 'é'].map(withValue),
      ...[/[0-9a-f]{64}/, /[^,=]+={0,2}$/]
        .map((signed) => value.replace(signed, 'é'.repeat(64)))
        .filter((text) => text !== value)
        .map(withValue),
      // Base64 decoders ignore invalid characters, so this is not a forgery.
      ...(signature === 'ed25519' ? [] : [withValue(`${value}x`)]),
      ...(isStandard
        ? ['', 'x', old, '9'.repeat(400), '-1'].map((time) => ({
            ...genuine,
            headers: { ...headers, 'webhook-timestamp': time },
          }))
        : []),
      ...(isStandard ? [{ ...genuine, headers: { ...headers, 'webhook-id': 'another' } }] : []),
      ...(signature === 'timestamp' ? [withValue(value.replace(/t=\d+/, `t=${old}`))] : []),
    ],
  };
}

function withNames(headers: Record<string, string>, spell: (name: string) => string): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [spell(name), value]));
}

interface Language {
  name: string;
  /** Signature shapes whose code can run here. */
  shapes: readonly Shape[];
  /** The reason why the code cannot run here; null if it can. */
  missing: () => Promise<string | null>;
  /** Returns for each case whether the code accepts it. */
  run: (code: string, signature: Shape, cases: readonly Case[]) => Promise<boolean[]>;
}

const run = promisify(execFile);

/** @param parameters that make the command print its version */
const commandMissing =
  (command: string, ...parameters: string[]) =>
  () =>
    run(command, parameters).then(
      () => null,
      () => `there is no ${command} here`,
    );

async function runWith(command: string, parameters: readonly string[], input: string): Promise<boolean[]> {
  const child = run(command, [...parameters], { env: { ...process.env, GO111MODULE: 'off' } });
  child.child.stdin?.end(input);
  return JSON.parse((await child).stdout) as boolean[];
}

async function writeProgram(file: string, text: string): Promise<string> {
  const path = join(await mkdtemp(join(folder, 'program-')), file);
  await writeFile(path, text);
  return path;
}

async function runNode(code: string, signature: Shape, cases: readonly Case[]): Promise<boolean[]> {
  const file = await writeProgram(`${signature}.mjs`, code);
  const { verify } = await import(pathToFileURL(file).href);
  return cases.map(({ body, headers, secret }) => {
    // The library throws on an invalid signature; the code without the library does not.
    if (signature !== 'standard') return verify(body, headers, secret);
    try {
      return verify(body, headers, secret) !== undefined;
    } catch {
      return false;
    }
  });
}

const pythonMain = `
import json, sys

taken = []
for given in json.loads(sys.stdin.read()):
    parameters = [given["body"].encode(), given["headers"], given["secret"]]
    taken.append(verify(*parameters[:verify.__code__.co_argcount]))
print(json.dumps(taken))
`;

const python = await preparePython(join(import.meta.dirname, '../interoperability/python/requirements.txt'));

async function runPython(code: string, signature: Shape, cases: readonly Case[]): Promise<boolean[]> {
  const file = await writeProgram('sample.py', `${code}\n${pythonMain}`);
  const command = signature === 'ed25519' && 'bin' in python ? python.bin('python') : 'python3';
  return runWith(command, [file], JSON.stringify(cases));
}

/** Go rejects unused imports. */
const goPackages = [
  ...['bytes', 'crypto/ed25519', 'crypto/hmac', 'crypto/sha256', 'encoding/base64', 'encoding/hex'],
  ...['encoding/json', 'fmt', 'net/http', 'os', 'strconv', 'strings', 'time'],
];

function goProgram(code: string, signature: Shape): string {
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

async function runGo(code: string, signature: Shape, cases: readonly Case[]): Promise<boolean[]> {
  const file = await writeProgram('sample.go', goProgram(code, signature));
  return runWith('go', ['run', file], JSON.stringify(cases));
}

const javaArguments: Readonly<Record<Shape, string>> = {
  timestamp: 'body, headers.get("nuncio-signature"), secret',
  sha256: 'body, headers.get("nuncio-signature"), secret',
  standard: 'body, headers::get, secret',
  ed25519: 'body, headers::get',
};

/** Each case is three lines of base64: the body, the secret, and the headers, one header per line. */
function javaProgram(code: string, signature: Shape): string {
  return `import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.*;
import java.security.spec.X509EncodedKeySpec;
import java.time.Instant;
import java.util.*;
import java.util.function.Function;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Sample {
  ${code}

  static byte[] next(Scanner lines) {
    return Base64.getDecoder().decode(lines.nextLine());
  }

  public static void main(String[] arguments) throws Exception {
    Scanner lines = new Scanner(System.in);
    List<Boolean> taken = new ArrayList<>();
    while (lines.hasNextLine()) {
      byte[] body = next(lines);
      String secret = new String(next(lines), UTF_8);
      Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
      for (String line : new String(next(lines), UTF_8).split("\\n")) {
        String[] parts = line.split(": ", 2);
        headers.put(parts[0], parts[1]);
      }
      taken.add(verify(${javaArguments[signature]}));
    }
    System.out.println(taken);
  }
}
`;
}

async function runJava(code: string, signature: Shape, cases: readonly Case[]): Promise<boolean[]> {
  const file = await writeProgram('Sample.java', javaProgram(code, signature));
  const lines = cases.flatMap(({ body, headers, secret }) => [
    body,
    secret,
    Object.entries(headers)
      .map(([name, value]) => `${name}: ${value}`)
      .join('\n'),
  ]);
  return runWith('java', [file], lines.map((line) => `${Buffer.from(line).toString('base64')}\n`).join(''));
}

const languages: readonly Language[] = [
  { name: 'Node.js', shapes, missing: async () => null, run: runNode },
  {
    name: 'Python',
    shapes: ['timestamp', 'sha256', 'standard'],
    missing: commandMissing('python3', '--version'),
    run: runPython,
  },
  {
    name: 'Python',
    shapes: ['ed25519'],
    // With the package `cryptography`, which the first run downloads.
    missing: async () => ('missing' in python ? python.missing : null),
    run: runPython,
  },
  { name: 'Go', shapes, missing: commandMissing('go', 'version'), run: runGo },
  { name: 'Java', shapes, missing: commandMissing('java', '-version'), run: runJava },
];

const deliveries = new Map<Shape, ReturnType<typeof deliver>>();

/** Returns the same delivery for each language. */
function deliverOnce(signature: Shape): ReturnType<typeof deliver> {
  const made = deliveries.get(signature) ?? deliver(signature);
  deliveries.set(signature, made);
  return made;
}

for (const { name, shapes: ofLanguage, missing, run: runCode } of languages) {
  const reason = await missing();
  for (const signature of ofLanguage) {
    test(`the code for ${name} accepts a delivery signed by ${signature} and refuses everything else with false`, {
      skip: reason ?? false,
    }, async () => {
      const { received, secret } = await deliverOnce(signature);
      const { taken, refused } = casesOf(signature, received, secret);
      const results = await runCode(await codeOf(signature, name), signature, [...taken, ...refused]);
      const wrong = [...taken, ...refused].filter((_one, index) => results[index] !== index < taken.length);
      assert.deepEqual(wrong, []);
      assert.equal(results.length, taken.length + refused.length);
    });
  }
}

test('the code for Node.js accepts a delivery whose headers are a Headers object', async () => {
  for (const signature of ['timestamp', 'sha256', 'ed25519'] as const) {
    const { received, secret } = await deliverOnce(signature);
    const [genuine] = casesOf(signature, received, secret).taken as [Case];
    const headers = new Headers(genuine.headers) as never;
    assert.deepEqual(
      await runNode(await codeOf(signature, 'Node.js'), signature, [{ ...genuine, headers }]),
      [true],
    );
  }
});

test('there is code for six languages in each signature scheme', () => {
  const facts = { headers: { signature: 'Nuncio-Signature' }, publicKey: 'whpk_x' };
  for (const signature of shapes) {
    const names = samplesFor(signature, facts).map(({ language }) => language);
    assert.deepEqual(names, ['Node.js', 'Python', 'Go', 'Ruby', 'PHP', 'Java']);
  }
});

// The test environment has no interpreter for these languages. The code was compared with the definition of the
// signatures (src/webhooks/subscriptions/signature.ts) and with the manuals of both languages; it has not been run.
for (const name of ['Ruby', 'PHP']) {
  test(`the code for ${name} runs`, { skip: `there is no ${name} where this project is tested` }, () => {});
}
