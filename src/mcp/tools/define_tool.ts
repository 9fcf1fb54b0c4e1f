/**
 * Tools that the operator defines in `nuncio.config.ts`, besides those of the collections. The handler gets valid arguments and
 * the principal that calls; what it returns is checked against the output schema.
 */

import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import type { Static, TSchema } from 'typebox';
import type { Principal } from '../../grants/checked_principal.ts';
import { compileBodySchema } from '../../http/body_schema.ts';
import { reportUnknown } from '../../shared/nearest.ts';
import { type ApiRules, type ApiTarget, apiToolErrors, callApi } from './api_tool.ts';
import {
  type Tool,
  type ToolDescription,
  type ToolServices,
  toolNameCharactersMax,
  toolNamePattern,
} from './tool.ts';

/** Who calls a tool. */
export type ToolPrincipal = Pick<Principal, 'accountId' | 'externalId' | 'clientId' | 'grantId' | 'scopes'>;

export interface ToolContext {
  readonly principal: ToolPrincipal;
  /** Aborts when the client disconnects, and when the time for a call is over. */
  readonly signal: AbortSignal;
}

interface CommonDeclaration<Input extends TSchema, Output extends TSchema> {
  /** 1 to 64 lower-case letters, digits and underscores. */
  name: string;
  /** A few words for people. Default: the name. */
  title?: string;
  /** Tells the model what the tool does, and when to use it. */
  description: string;
  /** The schema of the arguments: an object. */
  input: Input;
  /** The schema of the result: an object. */
  output: Output;
  /** `read:<object>` for a tool that changes nothing, otherwise `write:<object>`. Agents without it neither see nor call the tool. */
  scope: `read:${string}` | `write:${string}`;
  /** A hint for people who approve calls: whether the tool can delete or overwrite something. Default: whether it writes. */
  destructive?: boolean;
  /** A hint: whether the tool reaches systems beyond the operator's. Default: true. */
  openWorld?: boolean;
}

/** A tool that runs in this process. */
export interface ToolDeclaration<Input extends TSchema, Output extends TSchema>
  extends CommonDeclaration<Input, Output> {
  /** Throws ToolError to tell the model what is wrong. Of other errors it learns nothing. */
  handler: (input: Static<Input>, context: ToolContext) => Static<Output> | Promise<Static<Output>>;
}

/** A tool that calls an API elsewhere, with a token for that API in the name of the caller. */
export interface ApiToolDeclaration<Input extends TSchema, Output extends TSchema>
  extends CommonDeclaration<Input, Output> {
  api: ApiTarget;
}

declare const declared: unique symbol;

/** A tool. The types of its handler were checked where it was defined. */
export interface DefinedTool {
  readonly [declared]: 'tool';
}

type HandlerDeclaration = ToolDeclaration<TSchema, TSchema>;
type AnyDeclaration = HandlerDeclaration | ApiToolDeclaration<TSchema, TSchema>;
const tools = new WeakSet<object>();

/** Defines a tool for the section `tools`. Loading the platform reports all its errors at once. */
export function defineTool<const Input extends TSchema, const Output extends TSchema>(
  declaration: ToolDeclaration<Input, Output> | ApiToolDeclaration<Input, Output>,
): DefinedTool {
  const copy = Object.freeze({ ...declaration });
  tools.add(copy);
  return copy as unknown as DefinedTool;
}

/** A defined tool, ready to be served. */
export interface ToolDefinition extends ToolDescription {
  /** The object of its scope. */
  readonly object: string;
  readonly bind: (services: ToolServices) => Tool['run'];
}

type Report = (place: string, reason: string) => void;

const members: Readonly<Record<keyof HandlerDeclaration | 'api', true>> = {
  name: true,
  title: true,
  description: true,
  input: true,
  output: true,
  scope: true,
  destructive: true,
  openWorld: true,
  handler: true,
  api: true,
};

const definedMax = 200;
const descriptionCharactersMax = 2_000;

export interface DefinitionRules extends ApiRules {
  /** Objects of the server's own scopes, which tools cannot use. */
  reservedObjects: ReadonlySet<string>;
}

export function readDefinedTools(
  given: readonly DefinedTool[] | undefined,
  rules: DefinitionRules,
  report: Report,
): ToolDefinition[] {
  if (given === undefined) return [];
  if (!Array.isArray(given) || given.length > definedMax) {
    report('tools', `must be an array of at most ${definedMax} tools`);
    return [];
  }
  return given.flatMap((value: unknown, index) => {
    if (typeof value === 'object' && value !== null && tools.has(value)) {
      return readDefinition(value as AnyDeclaration, rules, report);
    }
    report(`tools[${index}]`, 'must be the result of defineTool');
    return [];
  });
}

function readDefinition(
  declaration: AnyDeclaration,
  rules: DefinitionRules,
  report: Report,
): ToolDefinition[] {
  const { name, title = name, description, input, output, scope } = declaration;
  const place = `tools.${name}`;
  reportUnknown(declaration, members, place, report);
  const [, action, object = ''] = /^(read|write):([a-z][a-z0-9_-]{0,29})$/.exec(String(scope)) ?? [];
  if (action === undefined) report(`${place}.scope`, 'must be read:<object> or write:<object>');
  if (rules.reservedObjects.has(object)) report(`${place}.scope`, `${object} is reserved for the server`);
  if (
    typeof description !== 'string' ||
    description === '' ||
    description.length > descriptionCharactersMax
  ) {
    report(`${place}.description`, `must have 1 to ${descriptionCharactersMax} characters`);
  }
  const isReady = [
    checkSchema(input, `${place}.input`, report),
    checkSchema(output, `${place}.output`, report),
    checkAction(declaration, place, rules, report),
  ].every(Boolean);
  if (!isReady) return [];
  const { destructive = action === 'write', openWorld = true } = declaration;
  const annotations = {
    readOnlyHint: action === 'read',
    destructiveHint: destructive,
    openWorldHint: openWorld,
  };
  const described: ToolDescription = {
    name,
    title,
    description,
    inputSchema: input,
    outputSchema: output,
    annotations,
    scope: String(scope),
  };
  const bind: ToolDefinition['bind'] =
    'api' in declaration
      ? (services) => callApi(described, declaration.api, services)
      : () => runHandler(declaration);
  return [{ ...described, object, bind }];
}

/** A tool either has a handler or calls an API. */
function checkAction(
  declaration: AnyDeclaration,
  place: string,
  rules: DefinitionRules,
  report: Report,
): boolean {
  if (!('api' in declaration)) {
    if (typeof declaration.handler === 'function') return true;
    report(`${place}.handler`, 'must be a function, unless the tool has an api');
    return false;
  }
  const errors = apiToolErrors(declaration, rules);
  for (const [member, reason] of errors) report(`${place}.${member}`, reason);
  if ('handler' in declaration) report(`${place}.handler`, 'cannot be combined with api');
  return errors.length === 0;
}

function runHandler({ name, output, handler }: HandlerDeclaration): Tool['run'] {
  const validate = compileBodySchema(output);
  return async ({ arguments: given, principal, signal }) => {
    const { accountId, externalId, clientId, grantId, scopes } = principal;
    const result: unknown = await handler(given, {
      principal: { accountId, externalId, clientId, grantId, scopes },
      signal,
    });
    // What JSON cannot express never reaches the check.
    const value = JSON.parse(JSON.stringify(result) ?? 'null') as Record<string, unknown>;
    const [error] = validate(value);
    if (error === undefined) return value;
    throw new Error(`the result of the tool ${name} is not valid: ${error.pointer} ${error.message}`);
  };
}

/** Agents get the schemas as they are, so they must be complete. */
function checkSchema(schema: unknown, place: string, report: Report): boolean {
  const problem = schemaProblem(schema);
  if (problem !== undefined) report(place, problem);
  return problem === undefined;
}

function schemaProblem(schema: unknown): string | undefined {
  if (typeof schema !== 'object' || schema === null || (schema as { type?: unknown }).type !== 'object') {
    return 'must be the schema of an object';
  }
  if (/"\$ref":"(?!#)/.test(JSON.stringify(schema))) return 'must not refer to other documents with $ref';
  try {
    const ajv = new Ajv({ strict: false });
    addFormats.default(ajv);
    ajv.compile(schema);
    return undefined;
  } catch (error) {
    return `is not a valid schema: ${(error as Error).message}`;
  }
}

/** @returns what is wrong with the name of a tool; undefined if nothing is */
export function nameProblem(name: unknown): string | undefined {
  if (typeof name === 'string' && toolNamePattern.test(name) && name.length <= toolNameCharactersMax) {
    return undefined;
  }
  return `must consist of lower-case letters, digits and _, with 1 to ${toolNameCharactersMax} characters`;
}
