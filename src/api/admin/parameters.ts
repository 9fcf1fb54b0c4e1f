/** Query parameters of the administration lists. */

import Type from 'typebox';
import { isId } from '../../crypto/ids.ts';
import { queryParameter } from '../../http/describe.ts';
import type { PageQuery } from '../../http/page.ts';
import { Problem } from '../../http/problem.ts';
import type { ProblemCode } from '../../http/problem_codes.ts';
import { Id, Time } from '../../http/schema.ts';
import { readTime } from '../../http/time.ts';

type Parameters = PageQuery['parameters'];

export const accountParameter = queryParameter('account', 'Only entries of this account.', Id());
export const clientParameter = queryParameter(
  'client',
  'Only entries of this app, by its `client_id`.',
  Type.String({ minLength: 1, maxLength: 2_048 }),
);

export function rangeParameters(what: string) {
  return [
    queryParameter('since', `Only ${what} at or after this time.`, Time()),
    queryParameter('until', `Only ${what} before this time.`, Time()),
  ];
}

/** @throws Problem 400 */
export function readChoice<Name extends string>(
  parameters: Parameters,
  name: string,
  allowed: readonly Name[],
): Name | null {
  const value = parameters[name];
  if (value === undefined) return null;
  if ((allowed as readonly string[]).includes(value)) return value as Name;
  throw parameterProblem(`${name} must be one of ${allowed.join(', ')}.`);
}

/** @throws Problem 400 */
export function readIdParameter(parameters: Parameters, name: string): string | null {
  const value = parameters[name];
  if (value === undefined) return null;
  if (isId(value)) return value;
  throw parameterProblem(`${name} must be an id.`);
}

/** @throws Problem 400 */
export function readTextParameter(parameters: Parameters, name: string, maxLength: number): string | null {
  const value = parameters[name];
  if (value === undefined) return null;
  if (value !== '' && value.length <= maxLength) return value;
  throw parameterProblem(`${name} must have 1 to ${maxLength} characters.`);
}

/** @throws Problem 400 */
export function readTimeParameter(parameters: Parameters, name: string): Date | null {
  const value = parameters[name];
  if (value === undefined) return null;
  const time = readTime(value);
  if (time === undefined) throw parameterProblem(`${name} must be an RFC 3339 time.`);
  return time;
}

export function parameterProblem(detail: string, code: ProblemCode = 'invalid-parameter'): Problem {
  return new Problem(400, detail, { code });
}
