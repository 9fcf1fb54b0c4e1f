/** `nuncio audit`: what was granted, withdrawn, registered and issued. */

import { readAuditLog } from '../audit/audit_log.ts';
import { isId } from '../crypto/ids.ts';
import { type Command, textOption, UsageError } from './command.ts';
import { withDatabase } from './storage.ts';

/** Entries printed where no number is given, and at most. */
const limitDefault = 50;
const limitMax = 10_000;

export const audit: Command = {
  options: {
    client: { type: 'string' },
    account: { type: 'string' },
    kind: { type: 'string' },
    limit: { type: 'string' },
    json: { type: 'boolean' },
  },
  help: [
    ['--client ID', 'entries of one app'],
    ['--account ID', 'entries of one user'],
    ['--kind KIND', 'entries whose kind begins so, like grant or grant.withdrawn'],
    ['--limit N', `the last N entries (${limitDefault})`],
    ['--json', 'print a JSON object for each line'],
  ],
  async run({ values }, { config, print }) {
    const limit = Number(textOption(values, 'limit') ?? limitDefault);
    if (!Number.isInteger(limit) || limit < 1 || limit > limitMax) {
      throw new UsageError(`--limit may be a whole number from 1 to ${limitMax}`);
    }
    const accountId = textOption(values, 'account');
    if (accountId !== undefined && !isId(accountId))
      throw new UsageError('--account may be the id of a user');
    const filter = {
      clientId: textOption(values, 'client'),
      accountId,
      kind: textOption(values, 'kind'),
      limit,
    };
    for (const entry of await withDatabase(config, (db) => readAuditLog(db, filter))) {
      const { at, kind, accountId: account, clientId: client, grantId: grant, details } = entry;
      if (values.json === true) print(JSON.stringify({ at, kind, account, client, grant, details }));
      else print([at.toISOString(), kind, client ?? '', account ?? '', JSON.stringify(details)].join('  '));
    }
  },
};
