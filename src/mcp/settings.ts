/** The section `mcp` of `nuncio.config.ts`: the endpoint for agents. */

import { isLoopbackHost } from '../config/config.ts';
import { reportUnknown } from '../shared/nearest.ts';

/** The code of `NotFound` among the errors of events; the others follow. */
const firstErrorCodes = [-32_011, -32_023] as const;
export type FirstErrorCode = (typeof firstErrorCodes)[number];

/** Events for agents. Operators' programs read this declaration, so it names no types of the server. */
export interface AgentEventSettings {
  /** Maximum live subscriptions of a grant and of an account, for callbacks and for polling apart. */
  readonly subscriptionsPerGrant: number;
  readonly subscriptionsPerAccount: number;
  /** The code of the error `NotFound`; those of the other errors of events follow. The drafts disagree. */
  readonly firstErrorCode: FirstErrorCode;
  /** What the header `webhook-id` of a delivery has: the id of the event, or an id of the message. The drafts disagree. */
  readonly webhookId: 'event' | 'message';
}

export interface McpSettings {
  /** Whether the server has the endpoint `/mcp`. */
  readonly enabled: boolean;
  /** Origins of web pages that may use the endpoint, besides the server's own, such as `https://inspector.example`. */
  readonly allowedOrigins: readonly string[];
  /** Whether there are tools that manage apps, subscriptions and deliveries. */
  readonly management: boolean;
  readonly events: AgentEventSettings;
}

/** The section as declared. */
export interface McpDeclaration {
  /**
   * Whether the server has the endpoint `/mcp`.
   * @default `false`
   */
  readonly enabled?: boolean;
  /**
   * Origins of web pages that may use it, besides the server's own, such as `https://inspector.example`:
   * `https`, or `http` on loopback, without a path; at most 100.
   * @default `[]`
   */
  readonly allowedOrigins?: readonly string[];
  /**
   * Tools that manage apps, subscriptions and deliveries, for agents that the operator registers:
   * docs/agents.md#managing-apps-and-subscriptions.
   * @default `false`
   */
  readonly management?: boolean;
  /**
   * Events for agents (docs/agents.md#events): `subscriptionsPerGrant` (20) and `subscriptionsPerAccount` (100), each from 0 to
   * 10,000; `firstErrorCode` (-32011, or -32023); `webhookId` (`'event'`, or `'message'`).
   * @default the values in parentheses
   */
  readonly events?: Partial<AgentEventSettings>;
}

const members: Readonly<Record<keyof McpDeclaration, true>> = {
  enabled: true,
  allowedOrigins: true,
  management: true,
  events: true,
};

const originsMax = 100;

const defaultEvents: AgentEventSettings = {
  subscriptionsPerGrant: 20,
  subscriptionsPerAccount: 100,
  firstErrorCode: firstErrorCodes[0],
  webhookId: 'event',
};
const webhookIds: readonly string[] = ['event', 'message'];
const agentQuotaMax = 10_000;

/** @param report called with the place and reason of each problem */
export function readMcpSettings(
  declared: McpDeclaration | undefined,
  report: (place: string, reason: string) => void,
): McpSettings {
  const { enabled = false, allowedOrigins = [], management = false, events } = declared ?? {};
  reportUnknown(declared ?? {}, members, 'mcp', report);
  if (typeof enabled !== 'boolean') report('mcp.enabled', 'must be true or false');
  if (typeof management !== 'boolean') report('mcp.management', 'must be true or false');
  if (!Array.isArray(allowedOrigins) || allowedOrigins.length > originsMax) {
    report('mcp.allowedOrigins', `must be an array of at most ${originsMax} origins`);
  } else {
    for (const [index, origin] of allowedOrigins.entries()) {
      if (!isWebOrigin(origin)) {
        report(
          `mcp.allowedOrigins[${index}]`,
          'must be an origin that begins with https://, or with http:// on loopback, without a path',
        );
      }
    }
  }
  return Object.freeze({
    enabled: enabled === true,
    allowedOrigins: Object.freeze([...allowedOrigins]),
    management: management === true,
    events: readEventSettings(events, report),
  });
}

function readEventSettings(
  declared: Partial<AgentEventSettings> = {},
  report: (place: string, reason: string) => void,
): AgentEventSettings {
  const settings = { ...defaultEvents, ...declared };
  const place = 'mcp.events';
  reportUnknown(declared, defaultEvents, place, report);
  for (const name of ['subscriptionsPerGrant', 'subscriptionsPerAccount'] as const) {
    const value = settings[name];
    if (!Number.isInteger(value) || value < 0 || value > agentQuotaMax) {
      report(`${place}.${name}`, `must be an integer from 0 to ${agentQuotaMax}`);
    }
  }
  if (!firstErrorCodes.includes(settings.firstErrorCode)) {
    report(`${place}.firstErrorCode`, `must be ${firstErrorCodes.join(' or ')}`);
  }
  if (!webhookIds.includes(settings.webhookId)) {
    report(`${place}.webhookId`, `must be ${webhookIds.join(' or ')}`);
  }
  return Object.freeze(settings);
}

/** Whether it is exactly what browsers send as `Origin` (RFC 6454 section 6.2). */
export function isWebOrigin(value: unknown): boolean {
  const url = typeof value === 'string' ? URL.parse(value) : null;
  if (url === null || url.origin !== value) return false;
  return url.protocol === 'https:' || (url.protocol === 'http:' && isLoopbackHost(url.hostname));
}
