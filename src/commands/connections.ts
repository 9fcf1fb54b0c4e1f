/** `nuncio connections`: prints connection traces: what happened when apps tried to connect. */

import { type Connection, readConnections } from '../connections/connection_store.ts';
import { connectionOutcomes } from '../connections/step.ts';
import { addFirstDeliveries } from '../webhooks/log/first_delivery.ts';
import { type Command, textOption, UsageError } from './command.ts';
import { withDatabase } from './storage.ts';

/** Default and maximum number of connections. */
const limitDefault = 20;
const limitMax = 1_000;

export const connections: Command = {
  options: [
    ['--client ID', 'only connections of one app, by the client_id that it sends'],
    ['--request ID', 'only the connection with this request, by the id that an error page shows'],
    ['--outcome NAME', `only ${connectionOutcomes.join(', ')}`],
    ['--limit N', `number of latest connections (default ${limitDefault})`],
    ['--json', 'print one JSON object per line'],
  ],
  async run({ values }, { config, print, printError }) {
    const limit = Number(textOption(values, 'limit') ?? limitDefault);
    if (!Number.isInteger(limit) || limit < 1 || limit > limitMax) {
      throw new UsageError(`--limit must be an integer from 1 to ${limitMax}`);
    }
    const asked = textOption(values, 'outcome');
    const outcome = connectionOutcomes.find((name) => name === asked);
    if (asked !== undefined && outcome === undefined) {
      throw new UsageError(`--outcome must be one of ${connectionOutcomes.join(', ')}`);
    }
    const filter = {
      clientId: textOption(values, 'client'),
      requestId: textOption(values, 'request'),
      outcome,
    };
    const found = await withDatabase(config, async (db) =>
      addFirstDeliveries(db, await readConnections(db, filter, limit)),
    );
    if (found.length === 0 && values.json !== true) printError('No matching connections.');
    for (const connection of found.toReversed()) {
      if (values.json === true) print(JSON.stringify(toJson(connection)));
      else for (const line of toLines(connection)) print(line);
    }
  },
};

function toJson({ id, startedAt, outcome, clientId, accountId, grantId, steps }: Connection): object {
  return { id, started_at: startedAt, outcome, client: clientId, account: accountId, grant: grantId, steps };
}

function toLines({ startedAt, clientId, outcome, steps }: Connection): string[] {
  return [
    `${startedAt.toISOString()}  ${outcome}  ${clientId ?? 'unknown app'}`,
    ...steps.map(({ name, at, outcome: stepOutcome, error, explanation, request }) => {
      // A connection may take days, from a registration to the first delivery.
      const columns = [at, name.padEnd(15), stepOutcome.padEnd(7)];
      const words = [...columns, error, explanation, request && `(${request})`];
      return `  ${words.filter(Boolean).join('  ')}`;
    }),
  ];
}
