/**
 * `tools/call`: validates the arguments, runs the tool, and turns what it returns or throws into a result. What the model can do
 * something about is a result with `isError`, because clients do not show errors of the protocol to the model.
 */

import { onlyRead } from '../../database/connection_user.ts';
import { type BodySchema, compileBodySchema } from '../../http/body_schema.ts';
import { isFault, toProblem } from '../../http/errors.ts';
import type { Problem, ValidationError } from '../../http/problem.ts';
import { type WithWrittenMembers, writtenMembers } from '../json_rpc.ts';
import { JsonText, type Tool, type ToolCall, ToolError } from './tool.ts';

/** How long a tool may take. */
const runMsMax = 60_000;
/** Characters of a result as JSON. */
const resultCharactersMax = 4_194_304;
/** Characters of an error. */
const errorCharactersMax = 4_000;

export type ToolResult = {
  content: readonly [{ type: 'text'; text: string }];
  isError?: true;
} & WithWrittenMembers;

const checks = new WeakMap<Tool, BodySchema>();

function checkOf(tool: Tool): BodySchema {
  const { inputSchema, fillsDefaults = false } = tool;
  const check = checks.get(tool) ?? compileBodySchema(inputSchema, { useDefaults: fillsDefaults });
  checks.set(tool, check);
  return check;
}

/** A call whose signal is made when a tool looks at it. */
type Call = Omit<ToolCall, 'signal'> & { readonly signal: () => AbortSignal };

/** @param logFailure called with errors that nobody expected; the model gets no details of them */
export async function callTool(
  tool: Tool,
  call: Call,
  logFailure: (error: unknown) => void,
): Promise<ToolResult> {
  // The message is this request's own, so filling in defaults changes nothing else.
  const errors = checkOf(tool)(call.arguments);
  if (errors.length > 0) return failure(describeErrors(errors));
  if (tool.annotations.readOnlyHint) onlyRead();
  try {
    const value = await runInTime(tool, call);
    const text = value instanceof JsonText ? value.text : JSON.stringify(value);
    if (text.length > resultCharactersMax) return failure('The result is too large. Ask for less at once.');
    return { content: [{ type: 'text', text }], [writtenMembers]: { structuredContent: text } };
  } catch (error) {
    if (error instanceof ToolError) {
      if (error.cause !== undefined) logFailure(error);
      return failure(error.message);
    }
    const problem = toProblem(error);
    if (isFault(problem)) logFailure(error);
    return failure(describeProblem(problem));
  }
}

/** A handler that ignores its signal is left alone when the time is over. */
function runInTime(
  tool: Tool,
  { arguments: given, principal, signal: closed }: Call,
): ReturnType<Tool['run']> {
  let late: ToolError | undefined;
  let timeout: AbortController | undefined;
  let signal: AbortSignal | undefined;
  const timed: ToolCall = {
    arguments: given,
    principal,
    // Most tools never look at it.
    get signal() {
      if (signal !== undefined) return signal;
      timeout = new AbortController();
      if (late !== undefined) timeout.abort(late);
      signal = AbortSignal.any([closed(), timeout.signal]);
      return signal;
    },
  };
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      late = new ToolError(`The tool did not finish within ${runMsMax / 1_000} seconds.`);
      timeout?.abort(late);
      reject(late);
    }, runMsMax);
    tool.run(timed).then(
      (value) => {
        clearTimeout(timer);
        resolve(value);
      },
      (error: unknown) => {
        clearTimeout(timer);
        reject(error);
      },
    );
  });
}

function failure(text: string): ToolResult {
  return { content: [{ type: 'text', text: text.slice(0, errorCharactersMax) }], isError: true };
}

function describeProblem({ message, errors, status, headers }: Problem): string {
  if (errors !== undefined && errors.length > 0) return describeErrors(errors);
  const seconds = headers['retry-after'];
  if (status >= 500 && seconds === undefined)
    return 'The server failed. The call may have had no effect; try again later.';
  return seconds === undefined ? message : `${message} Try again in ${seconds} seconds.`;
}

/** One clause for each invalid argument. */
function describeErrors(errors: readonly ValidationError[]): string {
  const clauses = errors.map(({ pointer, message }) => `${nameOf(pointer)} ${message}`);
  return `The arguments are not valid: ${clauses.join('; ')}.`;
}

/** `/place/city` becomes `place.city`. */
function nameOf(pointer: string): string {
  if (pointer === '') return 'the object';
  return pointer
    .slice(1)
    .split('/')
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~').slice(0, 100))
    .join('.');
}
