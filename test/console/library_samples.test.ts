/**
 * The code that the console shows for the subscriber's libraries: it accepts what this server signs and refuses what is changed. Each
 * language is skipped, with the reason, if it or its registry is missing.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { librarySamples, type ServerHeaders } from '../../src/console/pages/subscriptions/library_code.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import {
  buildJar,
  clients,
  type Failure,
  installWheel,
  missingTool,
} from '../support/programs/subscriber_libraries.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, publish, subscribe } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const run = promisify(execFile);
const entry = new URL('../../src/verify/verify.ts', import.meta.url).href;
const shapes = ['timestamp', 'sha256', 'standard', 'ed25519'] as const;
const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const folder = await mkdtemp(join(tmpdir(), 'nuncio-samples-'));
after(() => rm(folder, { recursive: true, force: true }));

interface Case {
  signature: string;
  headers: Record<string, string>;
  body: string;
  secret: string;
}

/** The server's names, and others that an operator could choose. */
const otherNames = {
  event: 'X-Kind',
  delivery: 'X-Id',
  signature: 'X-Sign',
  sequence: 'X-Number',
  account: 'X-Owner',
};
const meta = (await (await fetch(`${server.baseUrl}/meta`)).json()) as { headers: ServerHeaders };
const nuncioNames = meta.headers;
const namings = { nuncio: nuncioNames, other: otherNames };
type Naming = keyof typeof namings;

async function receive(signature: string): Promise<Case> {
  const subscriber = await startSubscriber({ after });
  const user = await createConsoleUser(server);
  const { secret } = await subscribe(user, { url: subscriber.url, signature });
  await publish(publisher, user.account, [`ünïcödé ${signature}`]);
  const [received] = await subscriber.waitFor(1);
  const headers = Object.entries(received?.headers ?? {}).filter(([name]) => /^(nuncio|webhook)-/.test(name));
  return {
    signature,
    headers: Object.fromEntries(headers) as Record<string, string>,
    body: received?.body ?? '',
    secret,
  };
}

/** The same delivery with the headers of an operator. */
function renamed(each: Case, naming: Naming): Case {
  if (naming === 'nuncio') return each;
  const names = new Map(
    Object.entries(otherNames).map(([role, name]) => [
      String(nuncioNames[role as keyof typeof otherNames]).toLowerCase(),
      name,
    ]),
  );
  const headers = Object.entries(each.headers).map(([name, value]) => [names.get(name) ?? name, value]);
  return { ...each, headers: Object.fromEntries(headers) };
}

/** A new delivery, because libraries refuse old ones, and three copies that must be refused. */
async function casesOf(signature: string, naming: Naming): Promise<Case[]> {
  const each = renamed(await receive(signature), naming);
  const isKeyed = signature === 'ed25519';
  const otherSecret = `whsec_${Buffer.alloc(32, 1).toString('base64')}`;
  return [
    each,
    { ...each, body: each.body.replace('{', '{ ') },
    isKeyed ? { ...each, headers: {} } : { ...each, secret: otherSecret },
    {
      ...each,
      headers: Object.fromEntries(Object.entries(each.headers).filter(([name]) => !/sign/i.test(name))),
    },
  ];
}

const expected = [true, false, false, false];

function codeOf(language: string, signature: string, naming: Naming): string {
  const samples = librarySamples(signature, namings[naming], `${server.baseUrl}/meta`);
  return samples.find((each) => each.language === language)?.code as string;
}

const variants = shapes.flatMap((signature) =>
  (['nuncio', 'other'] as const).map((naming) => ({ signature, naming })),
);

test('the code for Node.js with the library accepts deliveries and refuses changed ones', async () => {
  for (const { signature, naming } of variants) {
    const file = join(folder, `${signature}_${naming}.mjs`);
    await writeFile(file, codeOf('Node.js', signature, naming).replace("'nuncio/verify'", `'${entry}'`));
    const { verifyDelivery } = await import(pathToFileURL(file).href);
    const results = [];
    for (const { body, headers, secret } of await casesOf(signature, naming)) {
      const result = verifyDelivery(body, headers, secret);
      results.push(
        await result.then(
          ({ kind }: { kind: string }) => kind === 'push',
          () => false,
        ),
      );
    }
    assert.deepEqual(results, expected, `${signature} ${naming}`);
  }
});

const pythonMain = `
import json, sys
from nuncio_verify import VerificationError

results = []
for case in json.load(open(sys.argv[1])):
    try:
        words = [case["body"].encode(), case["headers"], case["secret"]]
        delivery = verify_delivery(*words[:verify_delivery.__code__.co_argcount])
        results.append(delivery.kind == "push")
    except VerificationError:
        results.append(False)
print(json.dumps(results))
`;

test('the code for Python with the library accepts deliveries and refuses changed ones', async (t) => {
  const installed = await installWheel(t);
  if ('missing' in installed) return t.skip(installed.missing);
  for (const { signature, naming } of variants) {
    const program = join(folder, `${signature}_${naming}.py`);
    const cases = join(folder, 'cases.json');
    await writeFile(program, `${codeOf('Python', signature, naming)}\n${pythonMain}`);
    await writeFile(cases, JSON.stringify(await casesOf(signature, naming)));
    const { stdout }: { stdout: string } = await run(installed.python, [program, cases], {
      env: installed.env,
    });
    assert.deepEqual(JSON.parse(stdout), expected, `${signature} ${naming}`);
  }
});

const goMain = (call: string) => `
func main() {
	var cases []struct {
		Body, Secret string
		Headers      map[string]string
	}
	text, _ := os.ReadFile(os.Args[1])
	if err := json.Unmarshal(text, &cases); err != nil {
		panic(err)
	}
	results := []bool{}
	for _, each := range cases {
		header := http.Header{}
		for name, value := range each.Headers {
			header.Set(name, value)
		}
		delivery, err := VerifyDelivery([]byte(each.Body), header${call})
		results = append(results, err == nil && delivery.Kind == "push")
	}
	text, _ = json.Marshal(results)
	fmt.Println(string(text))
}`;

async function runGo(t: TestContext, signature: string, naming: Naming): Promise<boolean[] | undefined> {
  const home = await mkdtemp(join(folder, 'go-'));
  const main = goMain(signature === 'ed25519' ? '' : ', each.Secret');
  const imports = ['encoding/json', 'fmt', 'net/http', 'os', 'nuncio.example/verify'];
  const head = `package main\n\nimport (\n${imports.map((path) => `\t"${path}"`).join('\n')}\n)\n`;
  await writeFile(join(home, 'main.go'), `${head}\n${codeOf('Go', signature, naming)}\n${main}\n`);
  await writeFile(
    join(home, 'go.mod'),
    `module example/sample\n\ngo 1.22\n\nrequire nuncio.example/verify v0.0.0\n\nreplace nuncio.example/verify => ${join(clients, 'go')}\n`,
  );
  await writeFile(join(home, 'cases.json'), JSON.stringify(await casesOf(signature, naming)));
  try {
    return JSON.parse((await run('go', ['run', '.', 'cases.json'], { cwd: home })).stdout);
  } catch (error) {
    const missing = missingTool(error as Failure);
    if (missing === undefined) throw error;
    t.skip(missing);
    return undefined;
  }
}

test('the code for Go with the library accepts deliveries and refuses changed ones', async (t) => {
  for (const { signature, naming } of variants) {
    const results = await runGo(t, signature, naming);
    if (results === undefined) return;
    assert.deepEqual(results, expected, `${signature} ${naming}`);
  }
});

/** Each case has its own file: the secret, the body, and the headers, each in base64 on a line. */
const javaMain = (words: string) => `
  public static void main(String[] arguments) throws Exception {
    List<Boolean> results = new ArrayList<>();
    for (String file : arguments) {
      List<String> lines = new ArrayList<>();
      for (String line : Files.readAllLines(Path.of(file))) lines.add(new String(Base64.getDecoder().decode(line), "UTF-8"));
      String secret = lines.get(0);
      byte[] body = lines.get(1).getBytes("UTF-8");
      Map<String, List<String>> headers = new HashMap<>();
      for (String line : lines.subList(2, lines.size())) headers.put(line.split(": ", 2)[0], List.of(line.split(": ", 2)[1]));
      try {
        results.add(verifyDelivery(body, headers${words}).kind().equals("push"));
      } catch (DeliveryException error) {
        results.add(false);
      }
    }
    System.out.println(results);
  }`;

test('the code for Java with the library accepts deliveries and refuses changed ones', async (t) => {
  const built = await buildJar(t);
  if ('missing' in built) return t.skip(built.missing);
  for (const { signature, naming } of variants) {
    const home = await mkdtemp(join(folder, 'java-'));
    const words = signature === 'ed25519' ? '' : ', secret';
    const imports = 'import java.nio.file.*;\nimport java.util.*;\nimport nuncio.verify.*;';
    const code = `${codeOf('Java', signature, naming)}\n${javaMain(words)}`;
    await writeFile(join(home, 'Sample.java'), `${imports}\n\npublic class Sample {\n${code}\n}\n`);
    const files = await Promise.all(
      (await casesOf(signature, naming)).map(async ({ secret, body, headers }, index) => {
        const lines = [secret, body, ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`)];
        const file = join(home, `case${index}`);
        await writeFile(file, lines.map((line) => Buffer.from(line).toString('base64')).join('\n'));
        return file;
      }),
    );
    const { stdout }: { stdout: string } = await run('java', [
      '-cp',
      built.jar,
      join(home, 'Sample.java'),
      ...files,
    ]);
    assert.deepEqual(JSON.parse(stdout), expected, `${signature} ${naming}`);
  }
});
