/** Attacks by the name of an app, which users read on the consent page. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const owner = await createConsoleUser(server);

/** Names an app in every way that takes a name. @returns the statuses */
async function nameApp(name: string): Promise<number[]> {
  const json = { client_name: name, redirect_uris: ['https://reader.example/callback'] };
  const headers = { 'content-type': 'application/json' };
  const url = `${server.baseUrl}/oauth/register`;
  const registered = await fetch(url, { method: 'POST', headers, body: JSON.stringify(json) });
  const made = await owner.request('POST', '/apps', { json });
  await registered.arrayBuffer();
  return [registered.status, made.status];
}

test('attack: a name that shows nothing, hides a part of itself or covers other text is refused', async () => {
  const names = [
    ...['\u00a0', '\u3164', '\u2800\u2800', '\uffa0', '\u1160', '\ufe0f', '\u0301', '\u200b'],
    ...['Bank\u115f', 'Ba\u034fnk', 'Bank\u{e0100}', 'Bank\u202egpj', 'Ba\u00adnk', 'Bank\u2066'],
    ...[
      'a\nb',
      'a\u2028b',
      '\ue000',
      `a${'\u0300'.repeat(90)}`,
      `${'a\u0300\u0301\u0302\u0303\u0304\u0305'}b`,
    ],
  ];
  for (const name of names) assert.deepEqual(await nameApp(name), [400, 422], JSON.stringify(name));
});

test('names in many scripts, and with emoji, are accepted', async () => {
  const names = [
    ...['Zoë’s Notes', 'Cafe\u0301', '東京', 'قارئ', 'קוֹרֵא', 'पाठक', 'བོད་སྐྱབས་', 'Việt', 'ผู้อ่าน'],
    ...['❤️ Notes', '1️⃣', '😀', '$', '한국어'],
  ];
  for (const name of names) assert.deepEqual(await nameApp(name), [201, 201], JSON.stringify(name));
});
