/**
 * Tools that call an API elsewhere, such as one that `nuncio/protect` protects. The API gets a token of its own, for the user of
 * the agent and with the tool's scope; the agent's token never leaves this server. Nothing but what the output schema declares comes
 * back to the model, except the sentence of a refusal (RFC 9457), as a quotation.
 *
 *   arguments → URL, query or body → exchanged token → one request → status → JSON → declared members → output schema
 */

import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import type { TSchema } from 'typebox';
import { isLoopbackHost } from '../../config/config.ts';
import { allowListOf } from '../../egress/allow_list.ts';
import { EgressError } from '../../egress/error.ts';
import { TooLargeError } from '../../egress/fetch.ts';
import type { NamedFetchLimits } from '../../egress/named_fetch.ts';
import { parseJson } from '../../http/json.ts';
import { callerOfToken } from '../../http/overload/caller.ts';
import type { OAuthSettings } from '../../oauth/settings.ts';
import { NoTurnError } from '../../shared/limited_work.ts';
import { reportUnknown } from '../../shared/nearest.ts';
import { isObject } from '../json_rpc.ts';
import { type Tool, type ToolDescription, ToolError, type ToolServices } from './tool.ts';

/** Where a tool's API is. */
export interface ApiTarget {
  /** The audience of the token: an entry of `oauth.resources`. */
  resource: string;
  /**
   * At the resource's origin, or at a host of `webhooks.allow`. `{name}` in the path is replaced by the argument of this name, which must
   * be required. The other arguments are the query of a GET or DELETE, otherwise the JSON body. Without a query and a fragment.
   */
  url: string;
  /** Default: GET for a tool that reads, POST for one that writes. */
  method?: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
}

/** Time for a call in milliseconds, size of its response in bytes, connections to one API. */
export const apiLimits = {
  timeoutMs: 30_000,
  bytesMax: 1_048_576,
  connectionsMax: 48,
} satisfies NamedFetchLimits;

const targetMembers: Readonly<Record<keyof ApiTarget, true>> = { resource: true, url: true, method: true };

const urlBytesMax = 2_048;
/** Characters of an API's own words that reach the model. */
const quotedCharactersMax = 500;

export interface ApiRules {
  resources: OAuthSettings['resources'];
  /** Hosts and networks of the operator (`webhooks.allow`). */
  allow: readonly string[];
}

const methods = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'];
const placeholder = /\{([A-Za-z_][A-Za-z0-9_]{0,63})\}/g;

type Mistake = [member: string, reason: string];

/** @returns what is wrong with a declaration, each with its member */
export function apiToolErrors(
  { api, input, output, scope }: { api: ApiTarget; input: TSchema; output: TSchema; scope: string },
  { resources, allow }: ApiRules,
): Mistake[] {
  if (!isObject(api)) return [['api', 'must be an object with resource and url']];
  const { resource, url, method } = api as ApiTarget;
  const mistakes: Mistake[] = [];
  reportUnknown(api, targetMembers, 'api', (member, reason) => mistakes.push([member, reason]));
  if (!resources.some((entry) => (typeof entry === 'string' ? entry : entry.url) === resource)) {
    mistakes.push(['api.resource', 'must be one of oauth.resources']);
  }
  if (method !== undefined && !methods.includes(method)) {
    mistakes.push(['api.method', `must be ${methods.join(', ')}`]);
  } else if (method === 'GET' && String(scope).startsWith('write:')) {
    mistakes.push(['api.method', 'must not be GET: the tool writes']);
  }
  const reason = urlMistake(url, resource, allow) ?? placeholderMistake(url, input);
  if (reason !== undefined) mistakes.push(['api.url', reason]);
  if (hasChoiceOfObjects(output)) {
    mistakes.push([
      'output',
      'must not be a choice between objects: undeclared members could not be removed',
    ]);
  }
  return mistakes;
}

function urlMistake(url: unknown, resource: string, allow: readonly string[]): string | undefined {
  const text = typeof url === 'string' ? url.replaceAll(placeholder, 'x') : '';
  const parsed = URL.parse(text);
  if (parsed === null || parsed.href !== text || parsed.search !== '' || text.includes('#')) {
    return 'must be a normalized URL with a path, without a query and a fragment';
  }
  if (parsed.username !== '' || parsed.password !== '') return 'must not contain a user name or password';
  const isListed = allowListOf(allow).hasHost(parsed.hostname.replace(/^\[(.*)\]$/, '$1'));
  const isPlain = parsed.protocol === 'http:' && (isListed || isLoopbackHost(parsed.hostname));
  if (parsed.protocol !== 'https:' && !isPlain) {
    return 'must begin with https://, or be at a host of webhooks.allow or, in development, on loopback';
  }
  if (!isListed && parsed.origin !== URL.parse(resource)?.origin) {
    return 'must be at the origin of the resource, or at a host of webhooks.allow';
  }
  // A placeholder in the host would let an agent choose who gets the token.
  return String(url).slice(0, parsed.origin.length) === parsed.origin
    ? undefined
    : 'must have {name} in its path only';
}

function placeholderMistake(url: string, input: TSchema): string | undefined {
  const { required = [] } = input as { required?: string[] };
  const missing = namesIn(url).find((name) => !required.includes(name));
  return missing === undefined ? undefined : `has {${missing}}, which must be a required argument`;
}

function namesIn(url: string): string[] {
  return [...url.matchAll(placeholder)].map(([, name]) => name as string);
}

/** The validator removes undeclared members while it tries an alternative. */
function hasChoiceOfObjects(schema: unknown): boolean {
  if (typeof schema !== 'object' || schema === null) return false;
  const { anyOf, oneOf, allOf } = schema as Record<string, unknown>;
  const isChoice = [anyOf, oneOf, allOf].some(
    (branches) => Array.isArray(branches) && branches.filter((branch) => !isScalar(branch)).length > 1,
  );
  return isChoice || Object.values(schema).some(hasChoiceOfObjects);
}

const scalars: ReadonlySet<unknown> = new Set(['string', 'number', 'integer', 'boolean', 'null']);

function isScalar(schema: unknown): boolean {
  const { type, const: value } = (schema ?? {}) as { type?: unknown; const?: unknown };
  return scalars.has(type) || (value !== undefined && typeof value !== 'object');
}

/** @returns the function that runs the tool */
export function callApi(
  tool: ToolDescription,
  { resource, url, method: declared }: ApiTarget,
  { exchangeToken, fetch, inTurn }: ToolServices,
): Tool['run'] {
  const method = declared ?? (tool.scope.startsWith('read:') ? 'GET' : 'POST');
  const readOutput = createOutputReader(tool);
  return async ({ arguments: given, principal, signal }) => {
    const { target, body } = buildRequest(url, method, given);
    const send = async () => {
      if (signal.aborted) throw cancelled();
      const token = await exchangeToken(principal, { audience: resource, scopes: [tool.scope] });
      const headers: Record<string, string> = {
        accept: 'application/json',
        authorization: `Bearer ${token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      };
      return fetch(target, { method, headers, body, signal }).catch((cause) => {
        throw signal.aborted ? cancelled() : unreachable(cause, method);
      });
    };
    const response = await inTurn(target, callerOfToken(principal).owner, send).catch((cause) => {
      if (!(cause instanceof NoTurnError)) throw cause;
      throw new ToolError('Other calls of this API take too long. The call had no effect; try again later.', {
        cause,
      });
    });
    if (response.status < 200 || response.status > 299) throw await refused(response, method);
    return readOutput(Buffer.from(await response.arrayBuffer()));
  };
}

const cancelled = () => new ToolError('The call was cancelled.');

function buildRequest(
  url: string,
  method: string,
  given: Record<string, unknown>,
): { target: URL; body: string | undefined } {
  const inPath = new Set(namesIn(url));
  const text = url.replaceAll(placeholder, (_match, name: string) => segmentOf(name, given[name]));
  const target = new URL(text);
  // `.` and `..` are steps in a path, however they come together.
  if (target.href !== text) throw new ToolError(`The arguments are not valid: ${[...inPath].join(', ')}.`);
  const rest = Object.entries(given).filter(([name]) => !inPath.has(name));
  const hasBody = method !== 'GET' && method !== 'DELETE';
  if (!hasBody) {
    for (const [name, value] of rest) {
      for (const each of [value].flat()) {
        target.searchParams.append(name, typeof each === 'string' ? each : JSON.stringify(each));
      }
    }
  }
  if (target.href.length > urlBytesMax) {
    throw new ToolError('The arguments are too long for this tool. Use shorter ones.');
  }
  return { target, body: hasBody ? JSON.stringify(Object.fromEntries(rest)) : undefined };
}

function segmentOf(name: string, value: unknown): string {
  const text = typeof value === 'object' ? '' : String(value);
  // Servers that decode an escaped slash before they look at the path would see another path.
  if (text === '' || /[/\\]/.test(text)) throw new ToolError(`The arguments are not valid: ${name}.`);
  return encodeURIComponent(text);
}

/** @returns a function that reads a body, without the members that the output schema does not declare */
function createOutputReader({
  name,
  outputSchema,
}: ToolDescription): (body: Buffer) => Record<string, unknown> {
  const ajv = new Ajv({ strict: false, removeAdditional: 'all' });
  addFormats.default(ajv);
  const validate = ajv.compile(outputSchema);
  return (body) => {
    let value: unknown;
    try {
      value = parseJson(body) ?? {};
    } catch (cause) {
      throw new ToolError('The API did not respond with JSON. The call may have had an effect.', { cause });
    }
    if (isObject(value) && validate(value)) return value;
    throw new ToolError(
      'The API responded with something else than this tool returns. The call may have had an effect.',
      {
        cause: new Error(`the result of the tool ${name} is not valid: ${ajv.errorsText(validate.errors)}`),
      },
    );
  };
}

/** The request failed without a response that can be used. */
function unreachable(cause: unknown, method: string): ToolError {
  const effect =
    method === 'GET' ? 'Try again later.' : 'The call may have had an effect: check before you repeat it.';
  if (cause instanceof TooLargeError) {
    return new ToolError('The response of the API is too large. Ask for less at once.', { cause });
  }
  if (cause instanceof EgressError) {
    return new ToolError('The API cannot be reached. The call had no effect; try again later.', { cause });
  }
  const isLate = (cause as Error).name === 'TimeoutError';
  const what = isLate
    ? `did not respond within ${apiLimits.timeoutMs / 1_000} seconds`
    : 'closed the connection';
  return new ToolError(`The API ${what}. ${effect}`, { cause });
}

/** A response without success. What the agent cannot repair, the operator finds in the log. */
async function refused(response: Response, method: string): Promise<ToolError> {
  const { status, headers } = response;
  const cause = new Error(`the API responded with status ${status}`);
  if (status === 401 || status === 403) {
    return new ToolError(`The API did not permit the call (status ${status}).`, { cause });
  }
  if (status >= 500 || status < 400) {
    const again = method === 'GET' ? 'Try again later.' : 'The call may have had an effect.';
    return new ToolError(`The API failed (status ${status}). ${again}`, { cause });
  }
  if (status === 429) {
    const seconds = /^\d{1,5}$/.exec(headers.get('retry-after') ?? '')?.[0];
    return new ToolError(
      `The API is limiting calls. Try again ${seconds === undefined ? 'later' : `in ${seconds} seconds`}.`,
    );
  }
  const words = await quoteOf(response);
  return new ToolError(
    words === undefined
      ? `The API refused the call (status ${status}). Check the arguments.`
      : `The API refused the call (status ${status}). It says: ${words}`,
  );
}

/** @returns the `detail` or `title` of a problem document, as a JSON string: it cannot look like words of this server */
async function quoteOf(response: Response): Promise<string | undefined> {
  if (!/^application\/problem\+json(?:;|$)/i.test(response.headers.get('content-type') ?? ''))
    return undefined;
  try {
    const problem = parseJson(Buffer.from(await response.arrayBuffer()));
    const words = isObject(problem) ? (problem.detail ?? problem.title) : undefined;
    return typeof words === 'string' ? JSON.stringify(words.slice(0, quotedCharactersMax)) : undefined;
  } catch {
    return undefined;
  }
}
