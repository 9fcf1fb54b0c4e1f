/**
 * The mailer sends the mails of the outbox, several at once. One node at a time does: the holder of the lease `mail`.
 *
 *   due → read in a fair order (outbox.ts) → admitted to a place (places.ts) → claimed → sent, while no transaction is open → recorded
 *
 * What a recipient does, only mails to that recipient wait for. After a timeout a check of the SMTP server tells whether it
 * still responds; if it does not, all mails wait. If the node dies before a mail is recorded, another one sends it again, with the same
 * Message-ID.
 */

import { LRUCache } from 'lru-cache';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { newId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { Lease } from '../database/lease.ts';
import { upTo } from '../shared/entries.ts';
import { type MailContent, oneLine, type Unsubscribing } from './content.ts';
import { createMailMetrics, type MailMetrics } from './metrics.ts';
import {
  type ClaimedMail,
  claimMail,
  countRecent,
  type DueMail,
  type DueQuery,
  delayDueMails,
  postpone,
  readDueMails,
  recordEnd,
  recordFailure,
  recordSent,
} from './outbox.ts';
import { Places } from './places.ts';
import { type MailBrand, renderMail } from './render.ts';
import { MailError, type Transport } from './transport.ts';

/** Maximum due mails that are read at once. */
const dueMax = 1_000;
/** Milliseconds after which due mails are read again, also while some are in flight. */
const rereadMs = 5_000;
/** Mails of one kind that an address gets in an hour, and how long others wait, in seconds. */
const perAddressMax = 10;
const limitedSeconds = 600;
/** How long the others wait after the SMTP server could not be reached, in seconds. */
const unreachableSeconds = 60;
/** How long a domain whose mails were interrupted is not proven, in milliseconds, and the maximum number of such domains. */
const interruptedMs = 600_000;
const interruptedMax = 10_000;
/** How long mails wait for the queueing of others, which may wait for a locked row, in milliseconds. */
const prepareMsMax = 1_000;
/** How long a stopping node waits for mails in flight, in milliseconds. */
const stopMsMax = 5_000;

export interface ComposedMail {
  content: MailContent;
  unsubscribing: Unsubscribing | null;
}

/** Writes a mail immediately before it is sent. @returns null if there is nothing to say any more, or nobody to say it to */
export type Composer = (mail: Pick<ClaimedMail, 'id' | 'kind' | 'accountId'>) => Promise<ComposedMail | null>;

export interface MailerOptions {
  db: Database;
  transport: Transport;
  /** The sender's address. */
  from: string;
  brand: MailBrand;
  baseUrl: string;
  /** Returns the address of an account; null if it may not get mail, or not any more. */
  addressOf: (accountId: string) => Promise<string | null>;
  /** The same as SQL, for the order in which mails are sent. */
  addressSql: DueQuery['addressSql'];
  /** Kinds that wait for due mails of all other kinds. */
  lastKinds: readonly string[];
  /** Writes mails that were queued without content. */
  compose: Composer;
  /** Queues mails that are due, each time before due mails are read. */
  prepare: () => Promise<void>;
  /** Milliseconds between passes. */
  pauseMs: number;
  logger: Logger;
  registry: Registry;
}

export class Mailer {
  readonly #options: MailerOptions;
  readonly #lease: Lease;
  readonly #count: MailMetrics;
  readonly #places = new Places();
  readonly #inFlight = new Set<Promise<void>>();
  readonly #interrupted = new LRUCache<string, true>({ ...upTo(interruptedMax), ttl: interruptedMs });
  #isReachable = true;
  /** When the SMTP server last accepted a mail, on the monotonic clock. */
  #acceptedAt = Number.NEGATIVE_INFINITY;
  /** A check of the SMTP server in progress, which mails share. */
  #check: Promise<boolean> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #pass: Promise<void> | undefined;
  #preparing: Promise<void> | undefined;
  #isStopped = false;
  readonly #ending = new AbortController();

  constructor(options: MailerOptions) {
    this.#options = options;
    this.#lease = new Lease({
      db: options.db,
      name: 'mail',
      holder: newId(),
      onError: (error) => this.#warn(error),
    });
    this.#count = createMailMetrics(options.registry, options.db);
  }

  start(): void {
    this.#timer = setInterval(() => {
      this.#pass ??= this.pass()
        .catch((error) => this.#warn(error))
        .finally(() => {
          this.#pass = undefined;
        });
    }, this.#options.pauseMs);
    this.#timer.unref();
  }

  /** Waits for the mails in flight, for a limited time. Those that hang are sent again by another node, later. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    const timer = setTimeout(() => this.#ending.abort(), stopMsMax);
    await this.#pass;
    clearTimeout(timer);
  }

  /** Sends all due mails, unless another node does. */
  async pass(): Promise<void> {
    if ((await this.#lease.acquire()) !== 'self') return;
    try {
      await this.#sendDue();
    } finally {
      await Promise.all(this.#inFlight);
      this.#options.transport.rest();
      await this.#lease.release();
    }
  }

  get #maySend(): boolean {
    return this.#lease.isHeld && !this.#isStopped && this.#isReachable;
  }

  async #sendDue(): Promise<void> {
    const { db, addressSql, lastKinds } = this.#options;
    this.#isReachable = true;
    this.#places.widen();
    for (let isChecked = false; this.#maySend; ) {
      await this.#prepare();
      const due = await readDueMails(db, { addressSql, lastKinds, max: dueMax });
      if (due.length === 0 && this.#inFlight.size === 0) return;
      isChecked ||= await this.#mayBegin(due);
      if (isChecked) await this.#sendRead(due);
      if (!this.#isReachable) await delayDueMails(db, due, unreachableSeconds);
    }
  }

  /** Queues mails that are due. If that fails or takes long, those that are queued already are sent. */
  async #prepare(): Promise<void> {
    this.#preparing ??= this.#options
      .prepare()
      .catch((error) => this.#warn(error))
      .finally(() => {
        this.#preparing = undefined;
      });
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, prepareMsMax);
    await Promise.race([this.#preparing, promise]);
    clearTimeout(timer);
  }

  /** Checks the SMTP server before a pass sends several mails at once. A failure counts against one mail only. */
  async #mayBegin([first]: readonly DueMail[]): Promise<boolean> {
    if (first === undefined) return true;
    try {
      await this.#options.transport.check();
      return true;
    } catch (error) {
      this.#isReachable = false;
      const mail = await claimMail(this.#options.db, first.id);
      if (mail !== undefined) await this.#recordError(mail, error);
      return false;
    }
  }

  /** Sends due mails until none is left, or until it is time to read them again. */
  async #sendRead(due: readonly DueMail[]): Promise<void> {
    const left = [...due];
    const rereadAt = performance.now() + rereadMs;
    while (this.#maySend && performance.now() < rereadAt) {
      const mail = this.#takeNext(left);
      if (mail !== undefined) this.#start(mail);
      else if (left.length === 0 && due.length === dueMax) return;
      else if (this.#inFlight.size === 0) return;
      else await this.#untilOneEnds(rereadAt - performance.now());
    }
  }

  /**
   * Removes the first mail that may have a place. Domains whose mails were interrupted come last: otherwise a few of them would get each place
   * that becomes free, for as long as they have older mails than others. While there are few places, known recipients come first: each new
   * domain that hangs may have the only one.
   */
  #takeNext(left: DueMail[]): DueMail | undefined {
    const isInterrupted = ({ domain }: DueMail) => this.#interrupted.has(domain);
    const applicantOf = (mail: DueMail) => ({ ...mail, isProven: mail.isProven && !isInterrupted(mail) });
    const admits = (mail: DueMail) => this.#places.admits(applicantOf(mail));
    let index = this.#places.isNarrow
      ? left.findIndex((mail) => applicantOf(mail).isProven && admits(mail))
      : -1;
    if (index === -1) index = left.findIndex((mail) => !isInterrupted(mail) && admits(mail));
    if (index === -1) index = left.findIndex((mail) => isInterrupted(mail) && admits(mail));
    const [mail] = index === -1 ? [] : left.splice(index, 1);
    return mail && applicantOf(mail);
  }

  #start(due: DueMail): void {
    this.#places.take(due);
    const sending = this.#send(due)
      .catch((error) => this.#warn(error))
      .finally(() => {
        this.#places.release(due);
        this.#inFlight.delete(sending);
      });
    this.#inFlight.add(sending);
  }

  async #untilOneEnds(msMax: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const pause = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, msMax);
    });
    await Promise.race([pause, ...this.#inFlight]);
    clearTimeout(timer);
  }

  async #send({ id, domain }: DueMail): Promise<void> {
    const { db, logger } = this.#options;
    const mail = await claimMail(db, id);
    if (mail === undefined) return;
    const startedAt = performance.now();
    try {
      const address = await this.#attempt(mail);
      if (address === null) return;
      this.#acceptedAt = performance.now();
      this.#interrupted.delete(domain);
      await recordSent(db, mail, address);
      this.#count('sent');
      logger.info(fieldsOf(mail), 'mail sent');
    } catch (error) {
      const outcome = error instanceof MailError ? error.outcome : 'failed';
      if (outcome === 'interrupted') this.#interrupted.set(domain, true);
      if (outcome === 'unreachable' && this.#places.taken > 1) {
        // Others are in flight: the server accepts no more connections at once, or their ends will tell more.
        this.#places.shrink();
        return postpone(db, mail, 0);
      }
      this.#isReachable &&= outcome !== 'unreachable';
      if (outcome === 'interrupted') this.#isReachable &&= await this.#stillResponds(startedAt);
      await this.#recordError(mail, error);
    }
  }

  /** Whether the SMTP server has accepted another mail since then, or responds now. */
  async #stillResponds(since: number): Promise<boolean> {
    if (this.#acceptedAt > since || this.#isStopped) return true;
    this.#check ??= this.#options.transport
      .check()
      .then(
        () => true,
        () => false,
      )
      .finally(() => {
        this.#check = undefined;
      });
    return this.#check;
  }

  async #recordError(mail: ClaimedMail, error: unknown): Promise<void> {
    const { db, logger } = this.#options;
    if (!(error instanceof MailError)) {
      // Nothing was sent: the database or the composer failed.
      await recordFailure(db, mail, (error as Error).message);
      this.#count('failed');
      return this.#warn(error);
    }
    const { outcome, message } = error;
    const line = { ...fieldsOf(mail), error: message };
    if (outcome === 'refused') {
      await recordEnd(db, mail, message);
      this.#count('refused');
      logger.warn(line, 'mail refused');
    } else {
      const isGivenUp = await recordFailure(db, mail, message);
      this.#count(isGivenUp ? 'given_up' : 'failed');
      logger.warn(line, isGivenUp ? 'mail given up' : 'mail failed, it will be retried');
    }
  }

  /** @returns the address; null if the mail was dropped or postponed */
  async #attempt(mail: ClaimedMail): Promise<string | null> {
    const { db, transport, from, brand, baseUrl, addressOf, compose } = this.#options;
    if (mail.isExpired) return this.#drop(mail, 'it has waited for too long');
    const address = mail.accountId === null ? mail.address : await addressOf(mail.accountId);
    if (address === null) return this.#drop(mail, 'the account has no address that it may get mail at');
    if ((await countRecent(db, address, mail.kind)) >= perAddressMax) {
      await postpone(db, mail, limitedSeconds);
      return null;
    }
    const composed =
      mail.content === null ? await compose(mail) : { content: mail.content, unsubscribing: null };
    if (composed === null) return this.#drop(mail, 'what it would say is no longer so');
    const { content, unsubscribing } = composed;
    const outgoing = {
      ...renderMail(content, { brand, baseUrl, unsubscribing }),
      messageId: `<${mail.id}@${from.slice(from.lastIndexOf('@') + 1)}>`,
      from: { name: oneLine(brand.name), address: from },
      to: address,
      unsubscribeUrl: unsubscribing === null ? null : baseUrl + unsubscribing.path,
    };
    await transport.send(outgoing, this.#ending.signal);
    return address;
  }

  async #drop(mail: ClaimedMail, reason: string): Promise<null> {
    await recordEnd(this.#options.db, mail, reason);
    this.#count('dropped');
    return null;
  }

  #warn(error: unknown): void {
    this.#options.logger.warn({ err: error }, 'cannot send mails');
  }
}

/** What log lines say of a mail. */
function fieldsOf({ id, kind, accountId, attempts }: ClaimedMail): object {
  return { mail: id, kind, account: accountId, attempt: attempts };
}
