/** `nuncio audit`: what was granted, withdrawn, registered and issued. */

import { normalizeEmail } from '../accounts/account.ts';
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
    ['--account ID', 'entries of one user, by id or e-mail address'],
    ['--kind KIND', 'entries whose kind begins so, like grant or grant.withdrawn'],
    ['--limit N', `the last N entries (${limitDefault})`],
    ['--json', 'print a JSON object for each line'],
  ],
  async run({ values }, { config, print }) {
    const limit = Number(textOption(values, 'limit') ?? limitDefault);
    if (!Number.isInteger(limit) || limit < 1 || limit > limitMax) {
      throw new UsageError(`--limit may be a whole number from 1 to ${limitMax}`);
    }
    const account = textOption(values, 'account');
    if (account !== undefined && !isId(account) && normalizeEmail(account) === undefined) {
      throw new UsageError(`--account is "${account}": it may be the id or the e-mail address of a user`);
    }
    const filter = {
      clientId: textOption(values, 'client'),
      account: account?.trim(),
      kind: textOption(values, 'kind'),
      limit,
    };
    for (const entry of await withDatabase(config, (db) => readAuditLog(db, filter))) {
      const { at, kind, accountId, clientId: client, grantId: grant, details, email } = entry;
      if (values.json === true) {
        print(JSON.stringify({ at, kind, account: accountId, email, client, grant, details }));
        continue;
      }
      // A column for each, also where there is nothing to say: they can be told apart by a program.
      const who = email ?? accountId ?? '-';
      print([at.toISOString(), kind, client ?? '-', who, JSON.stringify(details)].join('  '));
    }
  },
};
