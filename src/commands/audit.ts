/** `nuncio audit`: prints the audit log. */

import { normalizeEmail } from '../accounts/account.ts';
import { readAuditLog } from '../audit/audit_log.ts';
import { isId } from '../crypto/ids.ts';
import { type Command, textOption, UsageError } from './command.ts';
import { withDatabase } from './storage.ts';

/** Default and maximum number of entries. */
const limitDefault = 50;
const limitMax = 10_000;

export const audit: Command = {
  options: [
    ['--client ID', 'only entries of one app'],
    ['--account ID', 'only entries of one user, by id or e-mail address'],
    ['--kind KIND', 'only kinds with this prefix, for example grant or grant.withdrawn'],
    ['--limit N', `number of latest entries (default ${limitDefault})`],
    ['--json', 'print one JSON object per line'],
  ],
  async run({ values }, { config, print, printError }) {
    const limit = Number(textOption(values, 'limit') ?? limitDefault);
    if (!Number.isInteger(limit) || limit < 1 || limit > limitMax) {
      throw new UsageError(`--limit must be an integer from 1 to ${limitMax}`);
    }
    const account = textOption(values, 'account');
    if (account !== undefined && !isId(account) && normalizeEmail(account) === undefined) {
      throw new UsageError(`--account is "${account}": it must be the id or the e-mail address of a user`);
    }
    const filter = {
      clientId: textOption(values, 'client'),
      account: account?.trim(),
      kind: textOption(values, 'kind'),
      limit,
    };
    const entries = await withDatabase(config, (db) => readAuditLog(db, filter));
    if (entries.length === 0 && values.json !== true) printError('No matching audit entries.');
    for (const entry of entries) {
      const { at, kind, accountId, clientId: client, grantId: grant, details, email } = entry;
      if (values.json === true) {
        print(JSON.stringify({ at, kind, account: accountId, email, client, grant, details }));
        continue;
      }
      // Every line has all columns, so that programs can parse it.
      const who = email ?? accountId ?? '-';
      print([at.toISOString(), kind, client ?? '-', who, JSON.stringify(details)].join('  '));
    }
  },
};
