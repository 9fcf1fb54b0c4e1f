/** Reads where deliveries go, and with which secret they are signed. */

import { isSecret } from '../../webhooks/subscriptions/signature.ts';
import { checkSubscriberUrl, type UrlErrorCode } from '../../webhooks/subscriptions/subscriber_url.ts';
import { isObject } from '../json_rpc.ts';
import { type EventErrors, type ParamsReason, refusedParams } from './errors.ts';

export interface Callback {
  /** Normalized. */
  url: string;
  secret: string;
}

export interface CallbackRules {
  /** Accepts `http` and loopback hosts, for development. */
  allowInsecure: boolean;
  /** Private receivers that the operator listed. */
  allow: readonly string[];
}

const reasons: Readonly<Record<UrlErrorCode, ParamsReason>> = {
  url_invalid: 'invalid_url',
  url_scheme: 'https_required',
  url_credentials: 'invalid_url',
  url_fragment: 'invalid_url',
  url_length: 'too_large',
  url_port: 'invalid_url',
  url_address: 'address_not_allowed',
};

/** Reads the URL of `delivery`. @throws RpcError InvalidParams, Unsupported */
function readCallbackUrl(delivery: unknown, rules: CallbackRules, errors: EventErrors): string {
  if (delivery === undefined) throw refusedParams('delivery', 'required');
  if (!isObject(delivery)) throw refusedParams('delivery', 'invalid_type');
  const { mode, url } = delivery;
  if (mode !== undefined && typeof mode !== 'string') throw refusedParams('delivery.mode', 'invalid_type');
  // A name that no specification has is not repeated.
  if (mode !== undefined && mode !== 'webhook') {
    const known = mode === 'poll' || mode === 'push';
    throw errors.create('Unsupported', { feature: 'deliveryMode', ...(known ? { value: mode } : {}) });
  }
  if (url === undefined) throw refusedParams('delivery.url', 'required');
  if (typeof url !== 'string') throw refusedParams('delivery.url', 'invalid_type');
  const checked = checkSubscriberUrl(url, rules.allowInsecure, rules.allow);
  if (checked.error !== undefined) throw refusedParams('delivery.url', reasons[checked.error.code]);
  return checked.url;
}

/** @throws RpcError InvalidParams, Unsupported */
export function readCallback(delivery: unknown, rules: CallbackRules, errors: EventErrors): Callback {
  const url = readCallbackUrl(delivery, rules, errors);
  const { mode, secret } = delivery as { mode?: unknown; secret?: unknown };
  if (mode === undefined) throw refusedParams('delivery.mode', 'required');
  if (secret === undefined) throw refusedParams('delivery.secret', 'required');
  if (typeof secret !== 'string') throw refusedParams('delivery.secret', 'invalid_type');
  if (!isSecret(secret)) throw refusedParams('delivery.secret', 'invalid_secret');
  return { url, secret };
}
