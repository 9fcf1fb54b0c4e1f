/**
 * The keys of a client that signatures are verified with: those of its assertions (RFC 7523) and request objects (RFC 9101). They
 * come from the registration, or from the client's `jwks_uri`. RFC 7517 section 5: keys that the server does not support are ignored.
 */

import { keyError, keysMax } from '../clients/key_set.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';
import type { OutgoingRequests } from './outgoing_requests.ts';

/** Maximum number of keys that are tried for one signature, so that wrong signatures cost little. A rotation needs two. */
const keysTriedMax = 2;

/** Number of ignored keys that an error names. */
const namedMax = 3;

/** Why no key of a client fits. Shown to the client's developers and the operator, not in responses. */
class ClientKeysError extends Error {}

/** oidc-provider's keys of one client. It empties them and adds each key when it has fetched the set. */
interface ClientKeys {
  jwksUri: string | undefined;
  clear(): void;
  fresh(): boolean;
}

interface Added {
  count: number;
  /** What is wrong with keys that are ignored. */
  errors: string[];
  isTooLarge: boolean;
}

const added = new WeakMap<ClientKeys, Added>();

export type AddKey = (this: ClientKeys, key: Record<string, unknown>) => void;
export type ClearKeys = (this: ClientKeys) => void;
export type RefreshKeys = (this: ClientKeys) => Promise<void>;
export type SelectKeys = (this: ClientKeys, options: { alg: string; kid?: string }) => object[];

/** @param original adds a key that oidc-provider has checked */
export function addUsableKeys(original: AddKey): AddKey {
  return function (key) {
    const state = added.get(this) ?? { count: 0, errors: [], isTooLarge: false };
    state.count += 1;
    // The registration has checked the number of keys by value; those of earlier versions remain.
    if (this.jwksUri !== undefined && state.count > keysMax) {
      this.clear();
      added.set(this, { ...state, isTooLarge: true });
      throw tooLarge(this);
    }
    added.set(this, state);
    const error = keyError(key);
    if (error === undefined) original.call(this, key);
    else if (state.errors.length < namedMax) state.errors.push(`${nameOf(key)} ${error}`);
  };
}

/** @param original removes all keys */
export function forgetKeys(original: ClearKeys): ClearKeys {
  return function () {
    added.delete(this);
    original.call(this);
  };
}

/** @param original fetches the keys if they are old. Requests at the same time share one fetch */
export function refreshElsewhere(
  original: RefreshKeys,
  outgoing: Pick<OutgoingRequests, 'join'>,
): RefreshKeys {
  return async function () {
    if (this.fresh()) return;
    if (this.jwksUri !== undefined) outgoing.join(this.jwksUri);
    await waitElsewhere(() => original.call(this));
  };
}

/**
 * OpenID Connect Core section 10.1: a signature names its key by `kid` if the set has several.
 * @param original returns the keys that may have made a signature
 * @throws ClientKeysError if there are too many, or none because the server ignores keys of the set
 */
export function selectFewKeys(original: SelectKeys): SelectKeys {
  return function (options) {
    const keys = original.call(this, options);
    if (keys.length > keysTriedMax) {
      throw new ClientKeysError(
        `${keys.length} keys of the app match. Give each key its own kid, and name it in the header of the JWT`,
      );
    }
    const state = added.get(this);
    if (keys.length > 0 || state === undefined) return keys;
    if (state.isTooLarge) throw tooLarge(this);
    if (state.errors.length === 0) return keys;
    throw new ClientKeysError(
      `no key of the app matches; ignored because of limits: ${state.errors.join(', ')}`,
    );
  };
}

function nameOf({ kid }: Record<string, unknown>): string {
  return typeof kid === 'string' && /^[\w.~-]{1,64}$/.test(kid) ? `key ${kid}` : 'a key';
}

function tooLarge({ jwksUri }: ClientKeys): ClientKeysError {
  return new ClientKeysError(`the jwks_uri ${jwksUri} has more than ${keysMax} keys`);
}

/** @returns what is wrong with the keys of a client, from the causes of an error of oidc-provider */
export function clientKeysReason(error: unknown): string | undefined {
  if (error instanceof ClientKeysError) return error.message;
  return error instanceof Error ? clientKeysReason(error.cause) : undefined;
}
