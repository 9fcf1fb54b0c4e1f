/**
 * Storage of the engine (oidc-provider): what every model's file here fulfils. A method that a model never calls
 * is left out there and refused here.
 */

import { type Adapter, type AdapterPayload, errors } from 'oidc-provider';
import { isStorable, jsonDepthMax } from '../../http/json.ts';

export type { AdapterPayload };

/** What a model needs of its table. Ids are what the holder presents, not what is stored. */
export type ModelStorage = Partial<Adapter>;

/** Completes a storage, so that a call nobody thought of fails loudly instead of losing something. */
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

/** In JSON text: perhaps a NUL, or half of a surrogate pair (or a backslash before such letters). */
const unkeepable = /\\u(?:0000|d[89a-f])/i;

/**
 * A payload as it is stored: without the id, of which only the digest is kept.
 * @throws InvalidRequest for characters that cannot be kept
 */
export function withoutId(payload: AdapterPayload): string {
  const { jti: _jti, ...rest } = payload;
  const text = JSON.stringify(rest);
  if (unkeepable.test(text) && !isStorableJson(rest))
    throw new errors.InvalidRequest('the request has characters that cannot be kept');
  return text;
}

/**
 * Whether `jsonb` can keep the value: what it cannot are NUL characters and half surrogate pairs, also in names, and
 * nesting without end.
 */
export function isStorableJson(value: unknown, depth = 0): boolean {
  if (typeof value === 'string') return isStorable(value);
  if (typeof value !== 'object' || value === null) return true;
  if (depth >= jsonDepthMax) return false;
  return Object.entries(value).every(
    ([name, member]) => isStorable(name) && isStorableJson(member, depth + 1),
  );
}

/** What belongs to a grant is dead with it by the join, whoever withdrew it: nothing is left to do. */
export async function endsWithGrant(): Promise<void> {}
