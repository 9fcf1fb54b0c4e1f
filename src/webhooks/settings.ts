/**
 * What the operator may change of the webhooks: the section `webhooks` of `nuncio.config.ts`.
 */

import { BlockList, isIP } from 'node:net';
import { defaultHeaderNames, type HeaderNames } from './sending/delivery_request.ts';
import { type AppSubscriptions, appSubscriptionModes } from './subscriptions/app_subscriptions.ts';
import { type Quotas, readQuotas } from './subscriptions/quotas.ts';

export interface WebhookSettings {
  /** Names of the headers of a delivery. */
  readonly headers: HeaderNames;
  /** Addresses or CIDR ranges that deliveries are sent from, for `/meta` (specification 5.4.2). */
  readonly addresses: readonly string[];
  /** Which apps may have subscriptions of their own. */
  readonly appSubscriptions: AppSubscriptions;
  readonly quotas: Quotas;
}

/** As the operator writes it: a preset's name, or the names that are to be others. */
export interface WebhookDeclaration {
  headers?: HeaderPreset | Partial<HeaderNames>;
  addresses?: readonly string[];
  appSubscriptions?: AppSubscriptions;
  quotas?: Partial<Quotas>;
}

export const headerPresets = {
  nuncio: defaultHeaderNames,
  /** For receivers that know GitHub's; with `signature: "sha256"`. */
  github: {
    ...defaultHeaderNames,
    event: 'X-GitHub-Event',
    delivery: 'X-GitHub-Delivery',
    signature: 'X-Hub-Signature-256',
  },
  /** For receivers that know Stripe's; with `signature: "timestamp"`. */
  stripe: { ...defaultHeaderNames, signature: 'Stripe-Signature' },
} as const satisfies Record<string, HeaderNames>;
export type HeaderPreset = keyof typeof headerPresets;

/** Headers that say something else already. */
const takenNames =
  /^(host|content-.*|connection|transfer-encoding|user-agent|accept.*|date|te|trailer|upgrade|expect|keep-alive|proxy-.*|cookie|authorization|webhook-.*)$/i;
const token = /^[A-Za-z][A-Za-z0-9-]{0,63}$/;

/** @param report told of each problem: its place and the reason */
export function readWebhookSettings(
  declared: WebhookDeclaration | undefined,
  report: (place: string, reason: string) => void,
): WebhookSettings {
  const { headers = 'nuncio', addresses = [], appSubscriptions = 'all', quotas, ...others } = declared ?? {};
  for (const name of Object.keys(others)) report(`webhooks.${name}`, 'there is no such setting');
  if (!appSubscriptionModes.includes(appSubscriptions)) {
    report('webhooks.appSubscriptions', `it may be ${appSubscriptionModes.join(', ')}`);
  }
  return Object.freeze({
    headers: readHeaders(headers, report),
    addresses: readAddresses(addresses, report),
    appSubscriptions,
    quotas: readQuotas(quotas, report),
  });
}

function readHeaders(
  declared: NonNullable<WebhookDeclaration['headers']>,
  report: (place: string, reason: string) => void,
): HeaderNames {
  if (typeof declared === 'string') {
    if (Object.hasOwn(headerPresets, declared)) return headerPresets[declared];
    report('webhooks.headers', `it may be ${Object.keys(headerPresets).join(', ')}, or an object of names`);
    return defaultHeaderNames;
  }
  for (const [what, name] of Object.entries(declared)) {
    if (!Object.hasOwn(defaultHeaderNames, what))
      report(`webhooks.headers.${what}`, 'there is no such header');
    else if (typeof name !== 'string' || !token.test(name)) {
      report(`webhooks.headers.${what}`, 'it may be letters, digits and dashes, 64 at most');
    } else if (takenNames.test(name))
      report(`webhooks.headers.${what}`, `${name} says something else already`);
  }
  const names = { ...defaultHeaderNames, ...declared };
  const lower = Object.values(names).map((name) => String(name).toLowerCase());
  if (new Set(lower).size < lower.length) report('webhooks.headers', 'two headers have one name');
  return names;
}

function readAddresses(
  declared: readonly string[],
  report: (place: string, reason: string) => void,
): readonly string[] {
  const isRange = (text: unknown) => {
    const [address = '', bits, ...rest] = String(text).split('/');
    if (isIP(address) === 0 || rest.length > 0) return false;
    try {
      if (bits !== undefined)
        new BlockList().addSubnet(address, Number(bits), isIP(address) === 4 ? 'ipv4' : 'ipv6');
      return bits === undefined || /^\d+$/.test(bits);
    } catch {
      return false;
    }
  };
  if (Array.isArray(declared) && declared.every(isRange)) return Object.freeze([...declared]);
  report('webhooks.addresses', 'it may be an array of addresses and CIDR ranges');
  return [];
}
