/**
 * The notifier sends logout notices to apps and retries them until they are accepted or given up (OpenID Connect
 * Back-Channel Logout 1.0 sections 2.5 and 2.8). Signing out does not wait for it.
 */

import type { Provider } from 'oidc-provider';
import type { Logger } from 'pino';
import { asServer } from '../../database/connection_user.ts';
import type { Database } from '../../database/database.ts';
import { isFree } from '../../shared/share.ts';
import { addLogoutNotice, claimLogoutNotices, type LogoutNotice, recordLogoutAttempt } from './notice.ts';

/** Milliseconds between polls for due notices, and maximum attempts in flight. */
const pollMs = 5_000;
const inFlightMax = 20;
/** Accounts that are skipped because they have had their turn. */
const servedMax = 500;

type ProviderClient = InstanceType<Provider['Client']>;

export class LogoutNotifier {
  readonly #db: Database;
  readonly #provider: () => Provider;
  readonly #logger: Logger;
  #timer: NodeJS.Timeout | undefined;
  #polling: Promise<void> | undefined;
  /** Attempts in flight. Accounts have shares of them. */
  readonly #inFlight = new Map<Promise<void>, LogoutNotice>();
  /** Accounts that have had their turn. Their next one comes when no other account has due notices. */
  readonly #served = new Set<string>();
  #isWoken = false;
  #isStopped = false;

  /** @param provider returns the current provider, which signs the logout tokens */
  constructor(db: Database, provider: () => Provider, logger: Logger) {
    this.#db = db;
    this.#provider = provider;
    this.#logger = logger;
  }

  start(): void {
    this.#timer = setInterval(() => this.wake(), pollMs);
    this.#timer.unref();
  }

  /** Polls immediately. */
  wake(): void {
    this.#isWoken = true;
    if (this.#polling !== undefined || this.#isStopped) return;
    this.#polling = asServer(() => this.#run())
      .catch((error) => this.#warn(error))
      .finally(() => {
        this.#polling = undefined;
        if (this.#isWoken) this.wake();
      });
  }

  /** Waits for attempts in flight. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#polling;
    await Promise.all(this.#inFlight.keys());
  }

  /** Starts attempts for due notices without waiting for them. Each finished attempt frees a place. */
  async #run(): Promise<void> {
    while (this.#isWoken && !this.#isStopped) {
      this.#isWoken = false;
      const places = inFlightMax - this.#inFlight.size;
      if (places === 0) return;
      const notices = await this.#claim(places);
      this.#isWoken ||= notices.length > 0;
      for (const notice of notices) {
        const attempt = this.#send(notice)
          .catch((error) => this.#warn(error))
          .finally(() => {
            this.#inFlight.delete(attempt);
            this.wake();
          });
        this.#inFlight.set(attempt, notice);
      }
    }
  }

  /** Claims notices of accounts whose turn it is. A few accounts may have thousands that are older than those of all others. */
  async #claim(places: number): Promise<LogoutNotice[]> {
    const { clients, accounts } = this.#busy();
    for (;;) {
      const skipped = { clients, accounts: [...accounts, ...this.#served] };
      const notices = await claimLogoutNotices(this.#db, places, skipped);
      const isEnd = this.#served.size === 0;
      if (this.#served.size > servedMax || notices.length === 0) this.#served.clear();
      for (const { accountId } of notices) this.#served.add(accountId);
      if (notices.length > 0 || isEnd) return notices;
    }
  }

  #busy(): { clients: string[]; accounts: string[] } {
    const notices = [...this.#inFlight.values()];
    const byAccount = Map.groupBy(notices, ({ accountId }) => accountId);
    const accounts = [...byAccount].filter(([, own]) => !isFree(inFlightMax, notices.length, own.length));
    return {
      clients: [...new Set(notices.map(({ clientId }) => clientId))],
      accounts: accounts.map(([account]) => account),
    };
  }

  #warn(error: unknown): void {
    this.#logger.warn({ err: error }, 'cannot send logout notices');
  }

  async #send(notice: LogoutNotice): Promise<void> {
    const error = await this.#attempt(notice);
    const isGivenUp = await recordLogoutAttempt(this.#db, notice, error);
    const { clientId: client, accountId: account, attempts } = notice;
    const line = { client, account, attempt: attempts, error };
    if (error === null) this.#logger.info(line, 'back-channel logout delivered');
    else this.#logger.warn(line, `back-channel logout ${isGivenUp ? 'given up' : 'failed'}`);
  }

  /** @returns null if the app accepted the notice, otherwise the error */
  async #attempt(notice: LogoutNotice): Promise<string | null> {
    try {
      const client = await this.#provider().Client.find(notice.clientId);
      if (client === undefined) return 'its metadata document cannot be fetched';
      // The app no longer registers for logout notices.
      if (client.backchannelLogoutUri === undefined) return null;
      await sendLogout(client, notice);
      return null;
    } catch (error) {
      const { response, message } = error as Error & { response?: Response };
      return response === undefined ? message.slice(0, 500) : `status ${response.status}`;
    }
  }
}

export type SendLogout = (
  this: ProviderClient,
  accountId: string,
  sessionId: string | undefined,
) => Promise<void>;

/** oidc-provider's original `backchannelLogout`, by client class. */
const senders = new WeakMap<object, SendLogout>();

async function sendLogout(client: ProviderClient, notice: LogoutNotice): Promise<void> {
  const send = senders.get(client.constructor);
  await send?.call(client, notice.accountId, notice.sessionId ?? undefined);
}

/** @returns oidc-provider's `backchannelLogout`, which stores a notice instead of sending the logout token itself */
export function recordLogout(
  { Client }: Provider,
  original: SendLogout,
  db: Database,
  wake: () => void,
): SendLogout {
  senders.set(Client, original);
  return async function (accountId, sessionId) {
    await addLogoutNotice(db, { clientId: this.clientId, accountId, sessionId: sessionId ?? null });
    wake();
  };
}
