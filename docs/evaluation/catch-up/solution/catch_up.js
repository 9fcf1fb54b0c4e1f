import { appendFileSync, existsSync, readFileSync } from 'node:fs';

const { NUNCIO_URL, TOKEN, SUBSCRIPTION } = process.env;
const file = 'events.jsonl';
const known = existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : [];
const last = known.at(-1) ? JSON.parse(known.at(-1)).sequence : 0;

let path = `/subscriptions/${SUBSCRIPTION}/events?after=${last}&limit=1000`;
for (;;) {
  const response = await fetch(NUNCIO_URL + path, { headers: { authorization: `Bearer ${TOKEN}` } });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  const { items, _links: links } = await response.json();
  if (items.length === 0) break;
  for (const { sequence, kind, body } of items)
    appendFileSync(file, `${JSON.stringify({ sequence, kind, body })}\n`);
  path = links.next.href;
}
