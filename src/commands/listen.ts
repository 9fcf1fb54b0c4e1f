/** `nuncio listen`: forwards the user's events to a local URL, for development without a tunnel (src/listen). */

import { environmentOfProcess } from '../config/environment.ts';
import { listen as receive } from '../listen/listen.ts';
import { ListenError } from '../listen/session.ts';
import { stateFilePath } from '../listen/state_file.ts';
import { isSecret } from '../webhooks/subscriptions/signature.ts';
import { type Command, CommandError, type OptionValues, textOption, UsageError } from './command.ts';

export const listen: Command = {
  usesDatabase: false,
  options: [
    ['--forward URL', 'POST each event to this URL; default: only print'],
    ['--kinds KINDS', 'kinds of events, separated by commas; default all'],
    ['--replay SEQUENCE', 'begin after this sequence, 0 for the first; default: new events only'],
    ['--secret SECRET', 'sign with this secret (whsec_…); default: the subscription’s own'],
    ['--print', 'print the bodies'],
  ],
  async run({ values }, { config, print }) {
    const ending = new AbortController();
    const stop = () => ending.abort();
    process.once('SIGINT', stop).once('SIGTERM', stop);
    try {
      await receive({
        baseUrl: config.baseUrl,
        statePath: stateFilePath(environmentOfProcess()),
        forwardTo: readForward(values),
        kinds: readKinds(values),
        replayAfter: readReplay(values),
        secret: readSecret(values),
        printsBodies: values.print === true,
        isColored: process.stdout.isTTY === true,
        print,
        signal: ending.signal,
      });
    } catch (error) {
      throw error instanceof ListenError ? new CommandError(error.message) : error;
    } finally {
      process.off('SIGINT', stop).off('SIGTERM', stop);
    }
  },
};

function readForward(values: OptionValues): string | null {
  const text = textOption(values, 'forward');
  if (text === undefined) return null;
  // As curl does: a port or a host with a path.
  const url = URL.parse(/^\d+$/.test(text) ? `http://localhost:${text}` : text);
  if (url === null || !/^https?:$/.test(url.protocol))
    throw new UsageError('--forward must be an http or https URL');
  return url.href;
}

function readKinds(values: OptionValues): string[] {
  const text = textOption(values, 'kinds') ?? '*';
  const kinds = text.split(',').map((kind) => kind.trim());
  if (kinds.includes(''))
    throw new UsageError('--kinds must be kinds separated by commas, such as article.*,push');
  return [...new Set(kinds)].sort();
}

function readReplay(values: OptionValues): number | null {
  const text = textOption(values, 'replay');
  if (text === undefined) return null;
  if (!/^\d{1,15}$/.test(text)) throw new UsageError('--replay must be a sequence: 0 or more');
  return Number(text);
}

function readSecret(values: OptionValues): string | null {
  const secret = textOption(values, 'secret');
  if (secret === undefined) return null;
  if (!isSecret(secret)) throw new UsageError('--secret must be whsec_ and the base64 of 24 to 64 bytes');
  return secret;
}
