/** `nuncio client invite`: creates an initial access token for registering apps (RFC 7591). */

import { parseDurationSeconds } from '../config/duration.ts';
import { createInitialAccessToken } from '../oauth/registration/initial_access_token.ts';
import { type Command, textOption, UsageError } from './command.ts';
import { withDatabase } from './storage.ts';

export const clientInvite: Command = {
  options: [
    ['--note TEXT', 'description of the recipient'],
    ['--uses N', 'number of apps that the token can register (default 1)'],
    ['--expires DURATION', 'lifetime of the token, for example 12h (default 7d)'],
    ['--json', 'print JSON'],
  ],
  async run({ values }, { config, print }) {
    const uses = Number(textOption(values, 'uses') ?? '1');
    if (!Number.isInteger(uses) || uses < 1 || uses > 1_000_000) {
      throw new UsageError(
        `--uses is "${textOption(values, 'uses')}": it must be an integer from 1 to 1000000`,
      );
    }
    const expires = textOption(values, 'expires') ?? '7d';
    const seconds = parseDurationSeconds(expires);
    if (seconds === undefined || seconds < 1) {
      throw new UsageError(`--expires is "${expires}": it must be a duration like 12h or 7d`);
    }
    const note = textOption(values, 'note') ?? '';
    const token = await withDatabase(config, (db) => createInitialAccessToken(db, { note, uses, seconds }));
    print(values.json === true ? JSON.stringify({ initial_access_token: token }) : token);
  },
};
