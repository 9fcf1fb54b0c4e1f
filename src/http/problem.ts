/**
 * Problem details (RFC 9457): the form of every API error.
 */

import type { ProblemCode } from './problem_codes.ts';

/** An error at one place of a body: a JSON pointer (RFC 6901) and a sentence. */
export interface ValidationError {
  pointer: string;
  message: string;
  code?: ProblemCode;
}

export interface ProblemOptions {
  /** Also the last part of `type`. */
  code?: ProblemCode;
  errors?: ValidationError[];
  headers?: Record<string, string>;
  cause?: unknown;
}

const titles: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'Not Found',
  405: 'Method Not Allowed',
  406: 'Not Acceptable',
  408: 'Request Timeout',
  409: 'Conflict',
  412: 'Precondition Failed',
  413: 'Content Too Large',
  415: 'Unsupported Media Type',
  422: 'Unprocessable Content',
  428: 'Precondition Required',
  429: 'Too Many Requests',
  431: 'Request Header Fields Too Large',
  500: 'Internal Server Error',
  503: 'Service Unavailable',
};

/** An error response. Any code of a request may throw it; it is sent as `application/problem+json`. */
export class Problem extends Error {
  override readonly name = 'Problem';
  readonly status: number;
  readonly code: ProblemCode | undefined;
  readonly errors: ValidationError[] | undefined;
  readonly headers: Record<string, string>;

  /**
   * @param status HTTP status, 400 to 599
   * @param detail a sentence for the caller, without internal details
   */
  constructor(status: number, detail: string, options: ProblemOptions = {}) {
    super(detail, { cause: options.cause });
    this.status = status;
    this.code = options.code;
    this.errors = options.errors;
    this.headers = options.headers ?? {};
  }

  /** @param instance the request's id, as a URI */
  toBody(instance: string): Record<string, unknown> {
    return {
      type: this.code === undefined ? 'about:blank' : `urn:nuncio:problem:${this.code}`,
      title: titles[this.status] ?? 'Error',
      status: this.status,
      detail: this.message,
      instance,
      ...(this.code === undefined ? {} : { code: this.code }),
      ...(this.errors === undefined ? {} : { errors: this.errors }),
    };
  }
}

/** Returns a 422 with the invalid places of the body. */
export function bodyProblem(errors: ValidationError[], detail = 'The body is not valid.'): Problem {
  return new Problem(422, detail, { code: errors[0]?.code ?? 'invalid-body', errors });
}

/** Limit of reported errors. */
export const errorsMax = 100;

/** Collects the errors of one body, at most `errorsMax`. */
export class ErrorList {
  readonly #errors: ValidationError[];

  constructor(errors: readonly ValidationError[] = []) {
    this.#errors = errors.slice(0, errorsMax);
  }

  /** @param place names of members and numbers of items, from the outside in */
  add(place: readonly (string | number)[], message: string, code?: ProblemCode): void {
    if (this.#errors.length >= errorsMax) return;
    const pointer = place.map((part) => `/${escapePointer(String(part))}`).join('');
    this.#errors.push({ pointer, message, ...(code === undefined ? {} : { code }) });
  }

  /** @throws Problem 422 if there is an error */
  raise(): void {
    if (this.#errors.length > 0) throw bodyProblem(this.#errors);
  }
}

/** Escapes a name for use in a JSON pointer (RFC 6901 section 3). */
export function escapePointer(name: string): string {
  return name.replaceAll('~', '~0').replaceAll('/', '~1');
}
