/**
 * The mailer sends the mails of the outbox. One node at a time does: the holder of the lease `mail`. A mail is claimed, sent
 * while no transaction is open, and recorded. If the node dies in between, another one sends it again, with the same
 * Message-ID.
 */

import type { Logger } from 'pino';
import { Counter, Gauge, type Registry } from 'prom-client';
import { newId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { Lease } from '../database/lease.ts';
import { type MailContent, oneLine, type Unsubscribing } from './content.ts';
import {
  type ClaimedMail,
  claimMails,
  countRecent,
  countWaiting,
  postpone,
  recordEnd,
  recordFailure,
  recordSent,
} from './outbox.ts';
import { type MailBrand, renderMail } from './render.ts';
import { MailError, type Transport } from './transport.ts';

/** Mails of one claim. */
const claimedMax = 20;
/** Mails of one kind that an address gets in an hour, and how long others wait, in seconds. */
const perAddressMax = 10;
const limitedSeconds = 600;
/** How long the rest of a claim waits after the SMTP server could not be reached, in seconds. */
const unreachableSeconds = 60;
const countedMax = 10_000;

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
  /** Writes mails that were queued without content. */
  compose: Composer;
  /** Queues mails that are due, at the beginning of each pass. */
  prepare: () => Promise<void>;
  /** Milliseconds between passes. */
  pauseMs: number;
  logger: Logger;
  registry: Registry;
}

type Outcome = 'sent' | 'failed' | 'refused' | 'given_up' | 'dropped';

export class Mailer {
  readonly #options: MailerOptions;
  readonly #lease: Lease;
  readonly #count: (outcome: Outcome) => void;
  #timer: NodeJS.Timeout | undefined;
  #pass: Promise<void> | undefined;
  #isStopped = false;

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

  /** Waits for the mail in flight. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#pass;
  }

  /** Sends all due mails, unless another node does. */
  async pass(): Promise<void> {
    if ((await this.#lease.acquire()) !== 'self') return;
    try {
      await this.#options.prepare();
      while (await this.#sendSome());
    } finally {
      this.#options.transport.rest();
      await this.#lease.release();
    }
  }

  get #maySend(): boolean {
    return this.#lease.isHeld && !this.#isStopped;
  }

  /** @returns whether there may be more */
  async #sendSome(): Promise<boolean> {
    if (!this.#maySend) return false;
    const { db } = this.#options;
    const mails = await claimMails(db, claimedMax);
    let isReachable = true;
    for (const mail of mails) {
      if (!isReachable) await postpone(db, mail, unreachableSeconds);
      else if (!this.#maySend) await postpone(db, mail, 0);
      else isReachable = await this.#handle(mail);
    }
    return isReachable && mails.length === claimedMax;
  }

  /** @returns false if the SMTP server cannot be reached */
  async #handle(mail: ClaimedMail): Promise<boolean> {
    const { db, logger } = this.#options;
    const fields = { mail: mail.id, kind: mail.kind, account: mail.accountId, attempt: mail.attempts };
    try {
      const address = await this.#attempt(mail);
      if (address === null) return true;
      await recordSent(db, mail, address);
      this.#count('sent');
      logger.info(fields, 'mail sent');
      return true;
    } catch (error) {
      if (!(error instanceof MailError)) {
        // Nothing was sent: the database or the composer failed.
        await recordFailure(db, mail, (error as Error).message);
        this.#count('failed');
        this.#warn(error);
        return true;
      }
      const { outcome, message } = error;
      const line = { ...fields, error: message };
      if (outcome === 'refused') {
        await recordEnd(db, mail, message);
        this.#count('refused');
        logger.warn(line, 'mail refused');
      } else {
        const isGivenUp = await recordFailure(db, mail, message);
        this.#count(isGivenUp ? 'given_up' : 'failed');
        logger.warn(line, isGivenUp ? 'mail given up' : 'mail failed, it will be retried');
      }
      return outcome !== 'unreachable';
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
    await transport.send({
      ...renderMail(content, { brand, baseUrl, unsubscribing }),
      messageId: `<${mail.id}@${from.slice(from.lastIndexOf('@') + 1)}>`,
      from: { name: oneLine(brand.name), address: from },
      to: address,
      unsubscribeUrl: unsubscribing === null ? null : baseUrl + unsubscribing.path,
    });
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

/** @returns counts attempts by their outcome */
export function createMailMetrics(registry: Registry, db: Database): (outcome: Outcome) => void {
  const counter = new Counter({
    name: 'nuncio_mails_total',
    help: 'Attempts to send a mail, by outcome: sent, failed (will be retried), refused by the SMTP server, given_up after the last retry, dropped because nobody may get it any more.',
    labelNames: ['outcome'],
    registers: [registry],
  });
  for (const outcome of ['sent', 'failed', 'refused', 'given_up', 'dropped']) counter.inc({ outcome }, 0);
  new Gauge({
    name: 'nuncio_mails_waiting',
    help: `Mails that wait to be sent, in the whole deployment; at most ${countedMax}.`,
    registers: [registry],
    async collect() {
      this.set(await countWaiting(db, countedMax));
    },
  });
  return (outcome) => counter.inc({ outcome });
}
