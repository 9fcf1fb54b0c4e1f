/**
 * The notifier: sends logout notices to the apps that want them, again and again until they are taken or given up
 * (OpenID Connect Back-Channel Logout 1.0 sections 2.5 and 2.8). Signing out waits for nobody.
 */

import type { Provider } from 'oidc-provider';
import type { Logger } from 'pino';
import type { Database } from '../../database/database.ts';
import { addLogoutNotice, claimLogoutNotices, type LogoutNotice, recordLogoutAttempt } from './notice.ts';

/** Milliseconds between looks for what is due, and notices under way at once. */
const pollMs = 5_000;
const underWayMax = 20;

type EngineClient = InstanceType<Provider['Client']>;

export class LogoutNotifier {
  readonly #db: Database;
  readonly #provider: () => Provider;
  readonly #logger: Logger;
  #timer: NodeJS.Timeout | undefined;
  #round: Promise<void> | undefined;
  /** Attempts, each with the client that it is of. */
  readonly #underWay = new Map<Promise<void>, string>();
  #isWoken = false;
  #isStopped = false;

  /** @param provider the engine of the moment: it signs */
  constructor(db: Database, provider: () => Provider, logger: Logger) {
    this.#db = db;
    this.#provider = provider;
    this.#logger = logger;
  }

  start(): void {
    this.#timer = setInterval(() => this.wake(), pollMs);
    this.#timer.unref();
  }

  /** Looks at once: something is due. */
  wake(): void {
    this.#isWoken = true;
    if (this.#round !== undefined || this.#isStopped) return;
    this.#round = this.#run()
      .catch((error) => this.#warn(error))
      .finally(() => {
        this.#round = undefined;
        if (this.#isWoken) this.wake();
      });
  }

  /** Lets what is under way end. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#round;
    await Promise.all(this.#underWay.keys());
  }

  /** Begins what is due, and waits for none of it: each attempt that ends makes place for the next. */
  async #run(): Promise<void> {
    while (this.#isWoken && !this.#isStopped) {
      this.#isWoken = false;
      const places = underWayMax - this.#underWay.size;
      if (places === 0) return;
      const busy = [...new Set(this.#underWay.values())];
      for (const notice of await claimLogoutNotices(this.#db, places, busy)) {
        const attempt = this.#send(notice)
          .catch((error) => this.#warn(error))
          .finally(() => {
            this.#underWay.delete(attempt);
            this.wake();
          });
        this.#underWay.set(attempt, notice.clientId);
      }
    }
  }

  #warn(error: unknown): void {
    this.#logger.warn({ err: error }, 'logout notices could not be sent');
  }

  async #send(notice: LogoutNotice): Promise<void> {
    const error = await this.#attempt(notice);
    const isGivenUp = await recordLogoutAttempt(this.#db, notice, error);
    const { clientId: client, accountId: account, attempts } = notice;
    const line = { client, account, attempt: attempts, error };
    if (error === null) this.#logger.info(line, 'back-channel logout delivered');
    else this.#logger.warn(line, `back-channel logout ${isGivenUp ? 'given up' : 'failed'}`);
  }

  /** @returns null where the app was told, or why not */
  async #attempt(notice: LogoutNotice): Promise<string | null> {
    try {
      const client = await this.#provider().Client.find(notice.clientId);
      if (client === undefined) return 'its metadata document cannot be had';
      // It does not want to be told any more.
      if (client.backchannelLogoutUri === undefined) return null;
      await sendLogout(client, notice);
      return null;
    } catch (error) {
      const { response, message } = error as Error & { response?: Response };
      return response === undefined ? message.slice(0, 500) : `status ${response.status}`;
    }
  }
}

type SendLogout = (this: EngineClient, accountId: string, sessionId: string | undefined) => Promise<void>;

/** The engine's own sending, by the class of its clients. */
const senders = new WeakMap<object, SendLogout>();

async function sendLogout(client: EngineClient, notice: LogoutNotice): Promise<void> {
  const send = senders.get(client.constructor);
  await send?.call(client, notice.accountId, notice.sessionId ?? undefined);
}

/** Makes the engine write a notice where it would send one. */
export function useLogoutNotices(provider: Provider, db: Database, wake: () => void): void {
  const { Client } = provider;
  const prototype = Client.prototype as EngineClient & { backchannelLogout: SendLogout };
  senders.set(Client, prototype.backchannelLogout);
  prototype.backchannelLogout = async function (accountId, sessionId) {
    await addLogoutNotice(db, { clientId: this.clientId, accountId, sessionId: sessionId ?? null });
    wake();
  };
}
