/**
 * Converts bodies to earlier versions, in a thread of its own: the functions are the platform's, and one that loops or takes all
 * memory must not stop deliveries (src/webhooks/sending/converter.ts).
 */

import type { MessagePort } from 'node:worker_threads';
import { Ajv, type ValidateFunction } from 'ajv';
import addFormats from 'ajv-formats';
import type { EventKind } from './kind.ts';
import { replaceLengthKeywords } from './string_length.ts';
import { convertBody, versionNames } from './versions.ts';

export interface ConversionRequest {
  kind: string;
  /** The version of the body, and the earlier one that is wanted. */
  from: string;
  to: string;
  /** JSON text. */
  body: string;
}

/** How long a conversion took in its thread. The thread that asked may have had no time to notice its end. */
export interface ConversionTimes {
  /** By the clock. */
  ms: number;
  /** Of a processor. Whatever else the machine does has no part in it. */
  processorMs: number;
}

export type ConversionResponse = ({ body: string } | { error: string }) & ConversionTimes;

/** Maximum length of a converted body in characters. Bodies that are published have at most 262,144 bytes. */
const convertedLengthMax = 1_048_576;
const messageLengthMax = 500;

/** Responds to each message. */
export function serveConversions(port: MessagePort, declared: readonly EventKind[]): void {
  const kinds = new Map(declared.map((kind) => [kind.name, kind]));
  // The platform's check has validated the schemas.
  const ajv = new Ajv({ strict: false, validateSchema: false });
  addFormats.default(ajv);
  replaceLengthKeywords(ajv);
  const validators = new Map<string, ValidateFunction>();
  const validatorOf = (kind: EventKind, version: string): ValidateFunction => {
    const key = `${kind.name} ${version}`;
    const validate = validators.get(key) ?? ajv.compile(kind.versions?.[version]?.schema ?? {});
    validators.set(key, validate);
    return validate;
  };
  const convert = ({ kind: name, from, to, body }: ConversionRequest): string => {
    const kind = kinds.get(name);
    if (kind === undefined || !versionNames(kind).includes(to))
      throw new Error('the version is not declared');
    const text = JSON.stringify(convertBody(kind, JSON.parse(body), from, to));
    if (text === undefined) throw new TypeError('from returned no body');
    if (text.length > convertedLengthMax)
      throw new RangeError(
        `from returned ${text.length} characters; at most ${convertedLengthMax} are allowed`,
      );
    const validate = validatorOf(kind, to);
    // What JSON makes of the value counts, not the value itself.
    if (!validate(JSON.parse(text)))
      throw new TypeError(
        `from returned a body that does not match the schema: ${ajv.errorsText(validate.errors)}`,
      );
    return text;
  };
  port.on('message', (request: ConversionRequest) => {
    const begunAt = performance.now();
    const before = process.threadCpuUsage();
    let outcome: { body: string } | { error: string };
    try {
      outcome = { body: convert(request) };
    } catch (error) {
      outcome = { error: messageOf(error).slice(0, messageLengthMax) };
    }
    const { user, system } = process.threadCpuUsage(before);
    const ms = performance.now() - begunAt;
    port.postMessage({ ...outcome, ms, processorMs: (user + system) / 1_000 } satisfies ConversionResponse);
  });
}

/** Functions may throw anything. */
function messageOf(error: unknown): string {
  try {
    return error instanceof Error ? error.message : String(error);
  } catch {
    return 'from threw a value that has no text';
  }
}
