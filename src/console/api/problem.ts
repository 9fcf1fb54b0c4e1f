/** Errors of the API: problem details (RFC 9457). */

import type { Problem } from './generated.ts';

export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  readonly code: string | null;
  /** Messages by JSON pointer. */
  readonly errors: ReadonlyMap<string, string>;
  readonly requestId: string | null;

  constructor(status: number, problem: Partial<Problem>, requestId: string | null) {
    super(problem.detail ?? `The server responded with ${status}.`);
    this.status = status;
    this.code = problem.code ?? null;
    this.errors = new Map((problem.errors ?? []).map(({ pointer, message }) => [pointer, message]));
    this.requestId = requestId;
  }

  /** The error of a member of the body, or of a value inside it. */
  errorAt(name: string): string | undefined {
    for (const [pointer, message] of this.errors) {
      if (pointer === `/${name}` || pointer.startsWith(`/${name}/`)) return message;
    }
    return undefined;
  }
}

/** The message for the user. */
export function describeFailure(error: unknown): string {
  if (error instanceof ApiError) {
    const errors = [...error.errors].map(([pointer, message]) => `${pointer.slice(1)} ${message}`);
    return errors.length > 0 ? `${errors.join('; ')}.` : error.message;
  }
  if (error instanceof TypeError) return 'The server cannot be reached. Check the connection and try again.';
  return error instanceof Error ? error.message : String(error);
}
