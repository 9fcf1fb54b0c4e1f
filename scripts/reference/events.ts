/** The page of event kinds: those that the server publishes, and those of the example platform. */

import { createCatalogue } from '../../src/events/catalogue.ts';
import type { EventKind } from '../../src/events/kind.ts';
import { loadPlatform } from '../../src/platform.ts';
import { code, generatedNotice, table } from './markdown.ts';

const introduction = `# Event kinds

A deployment declares its kinds in [\`nuncio.config.ts\`](../platform.md#event-kinds). \`GET /event-kinds\` and \`/asyncapi.json\` of a server list
all of them, with their schemas. The server itself publishes three kinds, in every deployment. A receiver needs the scope of a kind; a kind
without a scope needs none.`;

export async function eventsPage(): Promise<string> {
  const builtIn = [...createCatalogue([]).kinds.values()];
  const { eventKinds } = await loadPlatform(null);
  return `${[
    generatedNotice,
    introduction,
    '## Published by the server',
    kindTable(builtIn),
    ...builtIn.map(example),
    '## Of the example platform',
    'The platform that `nuncio dev` runs without a `nuncio.config.ts`. Other documents use its kinds in examples.',
    kindTable(eventKinds),
    ...eventKinds.map(example),
  ].join('\n\n')}\n`;
}

type Kind = Pick<EventKind, 'name' | 'description' | 'object' | 'example' | 'resource'>;

function kindTable(kinds: readonly Kind[]): string {
  return table(
    ['kind', 'when', 'scope', 'link of thin deliveries'],
    kinds.map(({ name, description, object, resource }) => [
      code(name),
      description,
      object === null ? 'none' : code(`read:${object}`),
      resource === undefined ? 'none' : code(resource),
    ]),
  );
}

function example({ name, example: body }: Kind): string {
  return `### ${name}\n\n\`\`\`json\n${JSON.stringify(body, null, 2)}\n\`\`\``;
}
