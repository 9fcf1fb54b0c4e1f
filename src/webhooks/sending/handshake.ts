/**
 * The handshake: before a URL is stored, its server must echo a challenge, so that nobody sends deliveries to a server that does not want
 * them. The challenge is a signed request like a delivery, with a random value that is used once.
 *
 *   POST {"type":"verification","challenge":"…"}  →  2xx {"challenge":"…"} within 10 seconds
 */

import { randomBytes, timingSafeEqual } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { newId } from '../../crypto/ids.ts';
import type { ConnectorOptions } from '../../egress/connector.ts';
import { createGuardedFetch } from '../../egress/fetch.ts';
import { upTo } from '../../shared/entries.ts';
import { NoTurnError } from '../../shared/limited_work.ts';
import { isFree } from '../../shared/share.ts';
import { TokenBucket } from '../../shared/token_bucket.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import type { SignatureShape } from '../subscriptions/signature.ts';
import type { SubscriberAuth } from '../subscriptions/subscriber_auth.ts';
import { controlId, signedAgentLines } from './agent_message.ts';
import { AuthError, type Authorization, Authorizer, tokenBytesMax } from './authorization.ts';
import { buildChallenge, type DeploymentSigners } from './delivery_request.ts';
import type { ExchangeResult, OutgoingRequest } from './exchange.ts';
import { createSigningKeys } from './secret_keys.ts';
import { Sender } from './sender.ts';
import { TokenTurns } from './token_turns.ts';

/** The kind that the request names. */
const verificationKind = 'verification';
/** Milliseconds for the whole exchange. */
const challengeMs = 10_000;
/** Seconds after which it is tried again if it was not the account's turn at name servers or the egress proxy. */
const noTurnSeconds = 5;
/** Bytes that the response of an agent's callback may have. */
const agentResponseBytesMax = 65_536;
/** Handshakes of one owner: at most this many at once, and this many a minute. */
const burstMax = 10;
const perMinute = 10;
/**
 * Failed handshakes that one app asked of one host in a minute. Its accounts have shares (shared/share.ts): a host may serve all of them, so
 * none may use up what the others need.
 */
const failuresMax = 120;
const failureMs = 60_000;
/** Maximum number of owners, and of hosts of an app, whose rate is remembered. */
const ownersMax = 10_000;
/**
 * Handshakes in progress on this node, those of one app with all its users, and those of one account with all its apps. Of the first two, accounts
 * have shares (shared/share.ts), and of the last one apps, which leave one app alone ten.
 */
const inProgressMax = 100;
const inProgressOfAppMax = 24;
const inProgressOfAccountMax = 22;
/**
 * Milliseconds in which a URL that has echoed needs no other handshake with the same owner: usually, and for agents, which subscribe one
 * URL to many kinds. Maximum number of such URLs.
 */
const rememberedMs = { usual: 600_000, agent: 86_400_000 };
const rememberedMax = 10_000;

export interface HandshakeTarget {
  url: string;
  signature: SignatureShape;
  secret: string;
  /** Lines of static headers, each with its CRLF. */
  headerLines: string;
  auth: SubscriberAuth | null;
  /** The id of an agent's subscription, as the agent knows it: the challenge is a message of MCP Events (agent_message.ts). */
  agentKey?: string;
}

/** Who asks for a handshake. */
export interface HandshakeOwner {
  /** Whose rate is used, and for whom a success is remembered. */
  key: string;
  /** The app, or the account if there is none. Its users together get a share of the node. */
  app: string;
  /** The tenant. Its apps together get a smaller share. */
  account: string;
}

/** A failed handshake. */
interface Failure {
  readonly account: string;
  readonly at: number;
}

/** Null if the server echoed the challenge; otherwise why not, for the developer, or that the owner's rate is used up or there was no turn. */
export type HandshakeOutcome =
  | null
  | { reason: string }
  | { retryAfterSeconds: number; isOverloaded?: boolean };

export interface HandshakesOptions extends ConnectorOptions {
  /** Whether every URL needs a handshake. */
  isRequired: boolean;
  headerNames: HeaderNames;
  signers: DeploymentSigners;
}

export class Handshakes {
  readonly #options: HandshakesOptions;
  readonly #egress: ConnectorOptions;
  readonly #tokens: ReturnType<typeof createGuardedFetch>;
  /** Made for the first handshake. */
  #sender: Sender | undefined;
  readonly #turns = new TokenTurns();
  readonly #rates = new LRUCache<string, TokenBucket>(upTo(ownersMax));
  /** By app and host, the oldest first. */
  readonly #failures = new LRUCache<string, Failure[]>(upTo(ownersMax));
  readonly #done = new LRUCache<string, true>({ ...upTo(rememberedMax), ttl: rememberedMs.usual });
  readonly #running = new Map<string, Promise<HandshakeOutcome>>();
  readonly #inProgress: HandshakeOwner[] = [];
  /** What ends the exchanges in progress. */
  readonly #ends = new Set<() => void>();

  constructor(options: HandshakesOptions) {
    const { headerNames: _names, signers: _signers, isRequired: _isRequired, ...egress } = options;
    this.#options = options;
    this.#egress = egress;
    // The certificate is for the subscriber, not for its authorization server.
    const { clientCertificate: _certificate, ...plain } = egress;
    this.#tokens = createGuardedFetch(plain, { bytesMax: tokenBytesMax });
  }

  /** Whether every URL needs a handshake, also if its subscription does not ask for one. */
  get isRequired(): boolean {
    return this.#options.isRequired;
  }

  async close(): Promise<void> {
    for (const end of this.#ends) end();
    await this.#sender?.close();
    await this.#tokens.close();
  }

  /** Concurrent calls for the same owner and URL share one handshake. */
  async perform(owner: HandshakeOwner, target: HandshakeTarget): Promise<HandshakeOutcome> {
    const key = JSON.stringify([owner.key, target.url]);
    if (this.#done.has(key)) return null;
    const running = this.#running.get(key) ?? this.#perform(owner, target, key);
    this.#running.set(key, running);
    return running.finally(() => this.#running.delete(key));
  }

  async #perform(owner: HandshakeOwner, target: HandshakeTarget, key: string): Promise<HandshakeOutcome> {
    const { host } = new URL(target.url);
    const waitMs = this.#takeTurn(owner, host);
    if (waitMs > 0) return { retryAfterSeconds: Math.ceil(waitMs / 1_000) };
    this.#inProgress.push(owner);
    try {
      const reason = await this.#challenge(target, owner.account);
      if (reason === undefined) {
        this.#rates.get(owner.key)?.giveBack();
        return { retryAfterSeconds: noTurnSeconds, isOverloaded: true };
      }
      if (reason !== null) {
        const at = performance.now();
        this.#failuresOf(owner.app, host, at).push({ account: owner.account, at });
        return { reason };
      }
      this.#done.set(key, true, {
        ttl: target.agentKey === undefined ? rememberedMs.usual : rememberedMs.agent,
      });
      return null;
    } finally {
      this.#inProgress.splice(this.#inProgress.indexOf(owner), 1);
    }
  }

  /** @returns milliseconds to wait; 0 if the handshake may begin */
  #takeTurn({ key, app, account }: HandshakeOwner, host: string): number {
    const ofApp = this.#inProgress.filter((each) => each.app === app);
    const isOwn = (each: Pick<HandshakeOwner, 'account'>) => each.account === account;
    const ofAccount = this.#inProgress.filter(isOwn).length;
    const own = ofApp.filter(isOwn).length;
    if (!isFree(inProgressMax, this.#inProgress.length, ofAccount)) return 1_000;
    if (!isFree(inProgressOfAppMax, ofApp.length, own)) return 1_000;
    if (!isFree(inProgressOfAccountMax, ofAccount, own)) return 1_000;
    const now = performance.now();
    const failures = this.#failuresOf(app, host, now);
    const [oldest] = failures;
    if (oldest !== undefined && !isFree(failuresMax, failures.length, failures.filter(isOwn).length))
      return oldest.at + failureMs - now;
    const rate = this.#rates.get(key) ?? new TokenBucket(perMinute / 60, burstMax, now);
    this.#rates.set(key, rate);
    const nextAt = rate.nextAt(now);
    if (nextAt !== null) return nextAt - now;
    rate.take();
    return 0;
  }

  /** Those of the last minute, apart for each app, so that one cannot keep the others from a host that they share. */
  #failuresOf(app: string, host: string, now: number): Failure[] {
    const key = JSON.stringify([app, host]);
    const failures = this.#failures.get(key) ?? [];
    this.#failures.set(key, failures);
    while (failures[0] !== undefined && failures[0].at <= now - failureMs) failures.shift();
    return failures;
  }

  /** @returns why the server did not echo; null if it did */
  async #challenge(target: HandshakeTarget, account: string): Promise<string | null | undefined> {
    const { headerNames, signers, clientCertificate } = this.#options;
    const authorizer = new Authorizer(this.#tokens.fetch, clientCertificate !== undefined, this.#turns);
    let authorization: Authorization;
    try {
      authorization = await authorizer.authorize('', account, target.auth);
    } catch (error) {
      if (error instanceof AuthError) return error.message;
      if (error instanceof NoTurnError) return undefined;
      throw error;
    }
    const challenge = randomBytes(32).toString('base64url');
    const body = Buffer.from(JSON.stringify({ type: verificationKind, challenge }));
    const { origin, pathname, search } = new URL(target.url);
    const lines = challengeLines(target, headerNames, body, signers);
    const headers = lines + target.headerLines + authorization.lines;
    const { isMutual } = authorization;
    const isAgent = target.agentKey !== undefined;
    const limit = isAgent ? { responseBytesMax: agentResponseBytesMax } : {};
    const request = {
      origin,
      path: pathname + search,
      headers,
      body,
      isMutual,
      traced: null,
      tenant: account,
      ...limit,
    };
    this.#sender ??= new Sender(this.#egress);
    const result = await sendWithin(this.#sender, request, challengeMs, this.#ends);
    if (result?.isCancelled === true) return undefined;
    return result === null
      ? `no response arrived within ${challengeMs / 1_000} seconds`
      : judge(result, challenge, isAgent);
  }
}

function challengeLines(
  target: HandshakeTarget,
  headerNames: HeaderNames,
  body: Buffer,
  signers: DeploymentSigners,
): string {
  const { agentKey, secret } = target;
  const now = Date.now();
  if (agentKey === undefined)
    return buildChallenge(target, headerNames, { id: newId(), kind: verificationKind, body, now }, signers);
  const keys = createSigningKeys({ secret, previous: null }, 'standard');
  return signedAgentLines(agentKey, keys, { id: controlId('verification'), body, now });
}

/** @returns null if no response arrived in time */
async function sendWithin(
  sender: Sender,
  request: OutgoingRequest,
  timeoutMs: number,
  ends: Set<() => void>,
): Promise<ExchangeResult | null> {
  const { promise, resolve } = Promise.withResolvers<ExchangeResult | null>();
  const end = () => resolve(null);
  ends.add(end);
  sender.send(request, resolve, undefined, { timeoutMs });
  const result = await promise;
  ends.delete(end);
  if (result === null) return null;
  const isCut = result.truncated && result.endedAt - result.startedAt >= timeoutMs;
  return result.error === 'timeout' || isCut ? null : result;
}

/** @returns why the response is not the echo; null if it is. Nothing of the response is repeated */
function judge(
  { status, error, body, truncated }: ExchangeResult,
  challenge: string,
  isAgent: boolean,
): string | null {
  if (error !== null) return `the request failed: ${error}`;
  if (status === null || status < 200 || status > 299) return `the response has the status ${status}`;
  if (truncated) return 'the response is too large';
  let echoed: unknown;
  try {
    echoed = JSON.parse(body?.toString() ?? '');
  } catch {
    return 'the response is not JSON';
  }
  const value = (echoed as { challenge?: unknown } | null)?.challenge;
  // A server that returns each request as it came knows of no handshake.
  const type = (echoed as { type?: unknown } | null)?.type;
  if (isAgent ? type === verificationKind : type !== undefined) return 'the response is the request';
  if (typeof value !== 'string') return 'the response has no member `challenge`';
  const [given, expected] = [Buffer.from(value), Buffer.from(challenge)];
  const isSame = given.length === expected.length && timingSafeEqual(given, expected);
  return isSame ? null : 'the response has another challenge';
}
