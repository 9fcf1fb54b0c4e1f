/**
 * The storage interface of oidc-provider, which each file of this folder implements for one model. Methods
 * that oidc-provider never calls for a model are omitted and throw.
 */

import { type Adapter, type AdapterPayload, errors } from 'oidc-provider';
import { isStorable, jsonDepthMax } from '../../http/json.ts';
import { parameterBytesMax } from '../request_size.ts';

export type { AdapterPayload };

/** Methods of oidc-provider's adapter. Ids are the values that holders present, not what is stored. */
export type ModelStorage = Partial<Adapter>;

/** Adds the missing methods, which throw: an unexpected call must fail instead of losing data. */
export function toAdapter(model: string, storage: ModelStorage): Adapter {
  const refuse = (method: string) => async () => {
    throw new Error(`${model} has no ${method} in the storage`);
  };
  return {
    upsert: storage.upsert ?? refuse('upsert'),
    find: storage.find ?? refuse('find'),
    findByUserCode: storage.findByUserCode ?? refuse('findByUserCode'),
    findByUid: storage.findByUid ?? refuse('findByUid'),
    consume: storage.consume ?? refuse('consume'),
    destroy: storage.destroy ?? refuse('destroy'),
    revokeByGrantId: storage.revokeByGrantId ?? refuse('revokeByGrantId'),
  };
}

/** JSON escapes that may stand for NUL or half of a surrogate pair, or follow an escaped backslash. */
const maybeUnstorable = /\\u(?:0000|d[89a-f])/i;

/**
 * The stored form of a payload. It omits the id, because only its digest is stored.
 * @throws InvalidRequest for characters that cannot be stored
 */
export function withoutId(payload: AdapterPayload): string {
  const { jti: _jti, ...rest } = payload;
  const text = JSON.stringify(rest);
  if (maybeUnstorable.test(text) && !isStorableJson(rest))
    throw new errors.InvalidRequest('the request contains characters that cannot be stored');
  return text;
}

/** An interaction repeats parameters such as `login_hint`, a pushed request is base64, and JSON escapes make an encoded byte two. */
const requestBytesMax = 3 * parameterBytesMax;

/**
 * The stored form of a request before its user is known.
 * @throws InvalidRequest if it is too large, or for characters that cannot be stored
 */
export function requestWithoutId(payload: AdapterPayload): string {
  const text = withoutId(payload);
  if (Buffer.byteLength(text) > requestBytesMax)
    throw new errors.InvalidRequest(`the request has more than ${requestBytesMax} bytes as JSON`);
  return text;
}

/**
 * Whether `jsonb` can store the value. It cannot store NUL characters and unpaired surrogates, also in member names; and
 * the nesting depth is limited. It returns numbers with an exponent in full: `1e308` with 309 digits.
 */
export function isStorableJson(value: unknown, depth = 0): boolean {
  if (typeof value === 'string') return isStorable(value);
  if (typeof value === 'number') return !String(value).includes('e');
  if (typeof value !== 'object' || value === null) return true;
  if (depth >= jsonDepthMax) return false;
  return Object.entries(value).every(
    ([name, member]) => isStorable(name) && isStorableJson(member, depth + 1),
  );
}

/** `revokeByGrantId` of models whose queries join the grant: withdrawing the grant already invalidates them. */
export async function revokedWithGrant(): Promise<void> {}
