/** Errors as plain data, for messages between threads: `structuredClone` keeps neither classes nor codes. */

import { EgressError, type EgressErrorCode } from './error.ts';
import { TooLargeError } from './fetch.ts';

/** How many causes are kept. */
const causesMax = 5;

export interface PlainError {
  name: string;
  message: string;
  /** `code` of system and OpenSSL errors, of `undici` and of `EgressError`. */
  code?: string;
  /** Of `EgressError`. */
  reason?: string;
  /** Of `TooLargeError`. */
  bytesMax?: number;
  cause?: PlainError;
}

export function toPlainError(error: unknown, causesLeft = causesMax): PlainError {
  if (!(error instanceof Error)) return { name: 'Error', message: String(error) };
  const { code, reason, bytesMax } = error as { code?: unknown; reason?: unknown; bytesMax?: unknown };
  return {
    name: error.name,
    message: error.message,
    ...(typeof code === 'string' ? { code } : {}),
    ...(typeof reason === 'string' ? { reason } : {}),
    ...(typeof bytesMax === 'number' ? { bytesMax } : {}),
    ...(error.cause === undefined || causesLeft === 0
      ? {}
      : { cause: toPlainError(error.cause, causesLeft - 1) }),
  };
}

/** Makes an error of the same class, if it is one that callers distinguish, and otherwise of the same name and code. */
export function fromPlainError({ name, message, code, reason, bytesMax, cause }: PlainError): Error {
  const options = cause === undefined ? {} : { cause: fromPlainError(cause) };
  if (name === 'EgressError') return new EgressError(code as EgressErrorCode, { ...options, reason });
  if (name === 'TooLargeError' && bytesMax !== undefined) return new TooLargeError(bytesMax);
  // The codes of these are numbers.
  if ((name === 'TimeoutError' || name === 'AbortError') && code === undefined)
    return new DOMException(message, name);
  if (name === 'TypeError') return Object.assign(new TypeError(message, options), code && { code });
  return Object.assign(new Error(message, options), { name }, code && { code });
}
