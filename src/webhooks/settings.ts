/** Webhook settings of the operator: the section `webhooks` of `nuncio.config.ts`. */

import { BlockList, isIP } from 'node:net';
import { allowListErrors } from '../egress/allow_list.ts';
import { reportUnknown } from '../shared/nearest.ts';
import { type AppSubscriptions, appSubscriptionModes } from './subscriptions/app_subscription_modes.ts';
import {
  defaultHeaderNames,
  type HeaderNames,
  reservedForOperators,
} from './subscriptions/delivery_headers.ts';
import { type Quotas, readQuotas } from './subscriptions/quotas.ts';

export interface WebhookSettings {
  /** Header names of a delivery. */
  readonly headers: HeaderNames;
  /** Addresses or CIDR ranges that deliveries come from, shown at `/meta` (specification 5.4.2). */
  readonly addresses: readonly string[];
  /** Which apps may have subscriptions of their own. */
  readonly appSubscriptions: AppSubscriptions;
  /** Hosts and CIDR ranges that subscribers may have although they are private, also without TLS. */
  readonly allow: readonly string[];
  /** Whether every new URL must echo a challenge. */
  readonly handshake: boolean;
  readonly quotas: Quotas;
}

/** The operator's input: a preset's name, or the header names that differ. */
export interface WebhookDeclaration {
  /**
   * Names of a delivery's headers: `'nuncio'`, `'github'`, `'stripe'`, or an object of the names that differ:
   * `event`, `delivery`, `signature`, `sequence`, `attempt`, `account`, `accountExternalId`.
   * @default `'nuncio'`
   */
  headers?: HeaderPreset | Partial<HeaderNames>;
  /**
   * Addresses or CIDR ranges that deliveries are sent from, for `/meta`.
   * @default `[]`
   */
  addresses?: readonly string[];
  /**
   * Which apps can have subscriptions of their own: `'all'`, `'verified'`, or `'off'` (only clients whose
   * column `may_subscribe` the operator has set in the database).
   * @default `'all'`
   */
  appSubscriptions?: AppSubscriptions;
  /**
   * Private receivers: hosts, `*.` and a domain, and CIDR ranges that subscriptions may reach although they
   * are private, and without TLS.
   * @default `[]`
   */
  allow?: readonly string[];
  /**
   * Whether the server of every new URL must echo a challenge before the URL is stored
   * (docs/subscribers.md#handshake).
   * @default `false`
   */
  handshake?: boolean;
  /**
   * Limits for one account, app or host.
   * @default see below
   */
  quotas?: Partial<Quotas>;
}

const members: Readonly<Record<keyof WebhookDeclaration, true>> = {
  headers: true,
  addresses: true,
  appSubscriptions: true,
  allow: true,
  handshake: true,
  quotas: true,
};

export const headerPresets = {
  nuncio: defaultHeaderNames,
  /** For receivers that expect GitHub's headers, with `signature: "sha256"`. */
  github: {
    ...defaultHeaderNames,
    event: 'X-GitHub-Event',
    delivery: 'X-GitHub-Delivery',
    signature: 'X-Hub-Signature-256',
  },
  /** For receivers that expect Stripe's header, with `signature: "timestamp"`. */
  stripe: { ...defaultHeaderNames, signature: 'Stripe-Signature' },
} as const satisfies Record<string, HeaderNames>;
export type HeaderPreset = keyof typeof headerPresets;

const token = /^[A-Za-z][A-Za-z0-9-]{0,63}$/;

/** @param report called for each problem with its place and the reason */
export function readWebhookSettings(
  declared: WebhookDeclaration | undefined,
  report: (place: string, reason: string) => void,
): WebhookSettings {
  const {
    headers = 'nuncio',
    addresses = [],
    appSubscriptions = 'all',
    allow = [],
    handshake = false,
    quotas,
  } = declared ?? {};
  reportUnknown(declared ?? {}, members, 'webhooks', report);
  const errors = allowListErrors(allow);
  for (const { index, reason } of errors) {
    report(index === null ? 'webhooks.allow' : `webhooks.allow[${index}]`, reason);
  }
  if (typeof handshake !== 'boolean') report('webhooks.handshake', 'must be true or false');
  if (!appSubscriptionModes.includes(appSubscriptions)) {
    report('webhooks.appSubscriptions', `must be one of ${appSubscriptionModes.join(', ')}`);
  }
  return Object.freeze({
    headers: readHeaders(headers, report),
    addresses: readAddresses(addresses, report),
    appSubscriptions,
    allow: Object.freeze(errors.length > 0 ? [] : [...allow]),
    handshake,
    quotas: readQuotas(quotas, report),
  });
}

function readHeaders(
  declared: NonNullable<WebhookDeclaration['headers']>,
  report: (place: string, reason: string) => void,
): HeaderNames {
  if (typeof declared === 'string') {
    if (Object.hasOwn(headerPresets, declared)) return headerPresets[declared];
    report(
      'webhooks.headers',
      `must be one of ${Object.keys(headerPresets).join(', ')}, or an object of names`,
    );
    return defaultHeaderNames;
  }
  reportUnknown(declared, defaultHeaderNames, 'webhooks.headers', report);
  for (const [what, name] of Object.entries(declared)) {
    if (!Object.hasOwn(defaultHeaderNames, what)) continue;
    if (typeof name !== 'string' || !token.test(name)) {
      report(`webhooks.headers.${what}`, 'must be at most 64 letters, digits and dashes');
    } else if (reservedForOperators.test(name))
      report(`webhooks.headers.${what}`, `${name} is a reserved header name`);
  }
  const names = { ...defaultHeaderNames, ...declared };
  const lower = Object.values(names).map((name) => String(name).toLowerCase());
  if (new Set(lower).size < lower.length) report('webhooks.headers', 'two headers have the same name');
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
  report('webhooks.addresses', 'must be an array of addresses and CIDR ranges');
  return [];
}
