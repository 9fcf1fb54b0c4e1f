/**
 * Routes of the API. A route is declared once, with its admission and the schema of its body: the declaration admits callers,
 * validates bodies and describes the operation in the reference. The handler follows beside it.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Static, TSchema } from 'typebox';
import { type BodySchema, compileBodySchema, isCollected } from '../http/body_schema.ts';
import type { BodyDescription, Operation } from '../http/operation.ts';
import { ErrorList, errorsMax, escapePointer, type ValidationError } from '../http/problem.ts';
import type { Admission, AdmissionParts } from './admission.ts';

export interface Route<Caller, Schema extends TSchema, Path extends string> extends Operation {
  path: Path;
  admission: Admission<Caller>;
  body?: BodyDescription<Schema>;
}

/** Declares a route. */
export function route<Caller, Path extends string, Schema extends TSchema = TSchema>(
  declaration: Route<Caller, Schema, Path>,
): Route<Caller, Schema, Path> {
  return declaration;
}

/** The names of the parameters of a path. */
type ParameterNames<Path> = Path extends `${string}{${infer Name}}${infer Rest}`
  ? Name | ParameterNames<Rest>
  : never;

export interface Call<Caller, Body, Path> {
  request: FastifyRequest;
  reply: FastifyReply;
  /** Who is calling, as the admission found out. */
  caller: Caller;
  /** The path parameters by name. */
  params: Readonly<Record<ParameterNames<Path>, string>>;
  /** The valid body with its defaults. A request without a body is read as `{}`, so that its error names what is missing. */
  body: Body;
}

export type Handler<Caller, Body, Path> = (call: Call<Caller, Body, Path>) => unknown;

/**
 * Checks what the schema cannot say. All errors are reported together.
 * @param valid an object without the members that the schema rejects; any other body comes here only if it is valid
 */
export type BodyCheck<Body> = (valid: Partial<Body>, errors: ErrorList, request: FastifyRequest) => void;

export interface RouteParts extends AdmissionParts {
  api: FastifyInstance;
}

/** Serves a route. @param check adds to what the schema checks */
export function serve<Caller, Schema extends TSchema, Path extends string>(
  parts: RouteParts,
  declared: Route<Caller, Schema, Path>,
  handle: Handler<Caller, Static<Schema>, Path>,
  check?: BodyCheck<Static<Schema>>,
): void {
  const { method, path, admission, body: description } = declared;
  const validate =
    description === undefined || description.isRaw === true
      ? undefined
      : compileBodySchema(description.schema);
  parts.api.route({
    method: method.toUpperCase(),
    url: path.replaceAll(/\{(\w+)\}/g, ':$1'),
    ...(description?.bytesMax === undefined ? {} : { bodyLimit: description.bytesMax }),
    config: { operation: declared },
    handler: async (request, reply) => {
      const caller = await admission.admit(parts, request);
      const params = request.params as Call<Caller, unknown, Path>['params'];
      const body =
        validate === undefined
          ? undefined
          : readBody(request, description?.required === true, validate, check);
      return handle({ request, reply, caller, params, body: body as Static<Schema> });
    },
  });
}

function readBody<Body>(
  request: FastifyRequest,
  isRequired: boolean,
  validate: BodySchema,
  check: BodyCheck<Body> | undefined,
): Body {
  const value = request.body === undefined ? {} : request.body;
  const found = validate(value);
  const errors = new ErrorList(found);
  const valid = validPart(value, found);
  if (request.body === undefined && isRequired && found.length === 0) errors.add([], 'is required');
  if (check !== undefined && valid !== undefined) check(valid as Partial<Body>, errors, request);
  errors.raise();
  return value as Body;
}

/** @returns an object without its invalid members, if they are all known; any other value only if it is valid */
function validPart(value: unknown, errors: readonly ValidationError[]): unknown {
  if (errors.length === 0) return value;
  if (errors.length >= errorsMax || !isCollected(value)) return undefined;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined;
  const invalid = new Set(errors.map(({ pointer }) => pointer.split('/', 2)[1]));
  return Object.fromEntries(Object.entries(value).filter(([name]) => !invalid.has(escapePointer(name))));
}
