/** The outgoing mail of a server: puts the mailer, its transport and the notices together. */

import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { mailAddressOf, mailAddressSql } from '../accounts/mail_address.ts';
import type { Config } from '../config/config.ts';
import type { Database } from '../database/database.ts';
import { Mailer } from '../mail/mailer.ts';
import type { MailBrand } from '../mail/render.ts';
import { createMailBox, createSmtpTransport, type MailBox } from '../mail/transport.ts';
import { collectingSeconds, collectNotices, noticeRecoveries } from './digest.ts';
import { deliveryNoticeKinds } from './kinds.ts';
import { composeNotices } from './notice_mail.ts';
import { createUnsubscribeTokens, type UnsubscribeTokens } from './unsubscribe.ts';

/** Milliseconds between passes. */
const pauseMs = { dev: 2_000, usual: 10_000 };
/** Seconds that notices are collected in development. */
const collectingSecondsInDev = 5;

export interface MailingOptions {
  db: Database;
  config: Pick<Config, 'mode' | 'smtpUrl' | 'mailFrom' | 'baseUrl'>;
  secret: Buffer;
  brand: MailBrand;
  logger: Logger;
  registry: Registry;
}

export interface Mailing {
  unsubscribeTokens: UnsubscribeTokens;
  /** The mails that are kept in development; null if they are sent, and without an SMTP server in production. */
  mailBox: MailBox | null;
  /** Whether mail is sent, or shown in development. */
  sendsMail: boolean;
  start: () => void;
  stop: () => Promise<void>;
}

export function createMailing({ db, config, secret, ...shared }: MailingOptions): Mailing {
  const { smtpUrl, mailFrom: from, baseUrl } = config;
  const isDev = config.mode === 'dev';
  const unsubscribeTokens = createUnsubscribeTokens(secret);
  const mailBox = smtpUrl === null && isDev ? createMailBox() : null;
  const transport = smtpUrl === null ? mailBox : createSmtpTransport(smtpUrl);
  const waitSeconds = isDev ? collectingSecondsInDev : collectingSeconds;
  const mailer =
    transport &&
    new Mailer({
      ...shared,
      db,
      transport,
      from,
      baseUrl,
      addressOf: (accountId) => mailAddressOf(db, accountId),
      addressSql: mailAddressSql,
      lastKinds: deliveryNoticeKinds,
      compose: composeNotices(db, unsubscribeTokens),
      prepare: async () => {
        await noticeRecoveries(db);
        await collectNotices(db, waitSeconds);
      },
      pauseMs: isDev ? pauseMs.dev : pauseMs.usual,
    });
  return {
    unsubscribeTokens,
    mailBox,
    sendsMail: mailer !== null,
    start: () => mailer?.start(),
    stop: async () => mailer?.stop(),
  };
}
