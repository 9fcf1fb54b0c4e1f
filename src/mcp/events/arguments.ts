/** Reads the arguments of an event: their canonical form, and the filter that they stand for. */

import {
  type Condition,
  choicesMax,
  conditionsMax,
  type Filter,
  filterErrors,
  type Scalar,
  textCharactersMax,
} from '../../events/filter.ts';
import { canonicalJson } from '../../webhooks/subscriptions/agent_key.ts';
import { isObject } from '../json_rpc.ts';
import { refusedParams } from './errors.ts';
import type { AgentKind } from './kinds.ts';

/** Maximum bytes of the canonical arguments. */
const bytesMax = 4_096;

const limits = { $gt: 'gt', $gte: 'gte', $lt: 'lt', $lte: 'lte' } as const;

export interface ReadArguments {
  /** Canonical JSON. */
  canonical: string;
  /** Null if there are no arguments. */
  filter: Filter | null;
}

/**
 * @param given absent and null mean none
 * @throws RpcError InvalidParams
 */
export function readArguments(kind: AgentKind, given: unknown): ReadArguments {
  const canonical = readCanonical(given);
  const values = (given ?? {}) as object;
  const all = Object.entries(values).flatMap(([name, value]) => conditionsOf(kind, name, value));
  if (all.length > conditionsMax) throw refusedParams('arguments', 'too_large');
  return { canonical, filter: all.length === 0 ? null : { all } };
}

/** @throws RpcError InvalidParams */
export function readCanonical(given: unknown): string {
  const values = given ?? {};
  if (!isObject(values)) throw refusedParams('arguments', 'invalid_type');
  let canonical: string;
  try {
    canonical = canonicalJson(values);
  } catch (error) {
    if (error instanceof RangeError) throw refusedParams('arguments', 'too_large');
    throw error;
  }
  if (Buffer.byteLength(canonical) > bytesMax) throw refusedParams('arguments', 'too_large');
  return canonical;
}

function conditionsOf(kind: AgentKind, name: string, value: unknown): Condition[] {
  const field = kind.arguments.get(name);
  // The name is the client's.
  if (field === undefined) throw refusedParams('arguments', 'invalid');
  const place = `arguments.${name}`;
  const { path } = field;
  const conditions = readConditions(place, path, value);
  const [error] = filterErrors({ all: conditions }, [kind]);
  if (error !== undefined) throw refusedParams(place, 'invalid_type');
  return conditions;
}

function readConditions(place: string, path: string, value: unknown): Condition[] {
  if (Array.isArray(value)) {
    if (value.length === 0) throw refusedParams(place, 'invalid');
    if (value.length > choicesMax) throw refusedParams(place, 'too_large');
    return [{ path, in: value.map((each) => readScalar(place, each)) }];
  }
  if (!isObject(value)) return [{ path, eq: readScalar(place, value) }];
  const given = Object.entries(value);
  if (given.length === 0) throw refusedParams(place, 'invalid');
  return given.map(([name, limit]) => {
    if (!Object.hasOwn(limits, name)) throw refusedParams(place, 'invalid');
    return { path, [limits[name as keyof typeof limits]]: readScalar(place, limit) };
  });
}

function readScalar(place: string, value: unknown): Scalar {
  if (typeof value === 'object' && value !== null) throw refusedParams(place, 'invalid_type');
  if (typeof value === 'string' && value.length > textCharactersMax) throw refusedParams(place, 'too_large');
  return value as Scalar;
}
