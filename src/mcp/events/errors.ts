/**
 * Errors of events. The drafts number five of them differently: -32011 to -32015 (the design sketch and the clients that exist), or -32023
 * to -32027 (the extension's proposal). Their messages are the names of the errors, by which clients of both know them. Values of a request
 * are never repeated.
 */

import { RpcError, rpcCodes } from '../json_rpc.ts';
import type { FirstErrorCode } from '../settings.ts';

const names = ['NotFound', 'Forbidden', 'ResourceExhausted', 'Unsupported', 'CallbackEndpointError'] as const;
export type EventErrorName = (typeof names)[number];

/** Why a parameter is refused. */
export type ParamsReason =
  | 'required'
  | 'invalid_type'
  | 'invalid'
  | 'too_large'
  | 'invalid_secret'
  | 'invalid_url'
  | 'https_required'
  | 'address_not_allowed';

export class EventErrors {
  readonly #first: FirstErrorCode;

  constructor(first: FirstErrorCode) {
    this.#first = first;
  }

  create(name: EventErrorName, data: Readonly<Record<string, unknown>>): RpcError {
    return new RpcError(this.codeOf(name), name, { data });
  }

  codeOf(name: EventErrorName): number {
    return this.#first - names.indexOf(name);
  }
}

/** @param field its path, such as `delivery.url`, without names that the client made up */
export function refusedParams(field: string, reason: ParamsReason): RpcError {
  return new RpcError(rpcCodes.invalidParams, 'InvalidParams', { data: { field, reason } });
}

/** An error in a notification or a message that is sent. */
export function describeError({ code, message, data }: RpcError): Record<string, unknown> {
  return { code, message, data };
}
