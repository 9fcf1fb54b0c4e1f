/** Where mails go: to the operator's SMTP server, or into memory in development. */

import type { Transporter } from 'nodemailer';
import { isLoopbackHost } from '../config/config.ts';
import { isMailAddress } from '../config/mail.ts';
import { placesMax } from './places.ts';

export interface OutgoingMail {
  /** Stays the same over all attempts. */
  messageId: string;
  from: { name: string; address: string };
  to: string;
  subject: string;
  text: string;
  html: string;
  /** URL of RFC 8058; null for mails that nobody can unsubscribe from. */
  unsubscribeUrl: string | null;
}

export interface Transport {
  /**
   * @param signal ends the attempt
   * @throws MailError
   */
  send(mail: OutgoingMail, signal: AbortSignal): Promise<void>;
  /**
   * Connects and signs in, without a mail.
   * @throws MailError `unreachable`
   */
  check(): Promise<void>;
  /** Closes connections until the next mail. */
  rest(): void;
}

/**
 * Why a mail was not sent: `refused` is final for this mail, and `failed` may succeed later. After `interrupted`, a timeout or an
 * end of the connection, only a check says whether this mail or the server is the reason. After `unreachable` no other mail can be sent
 * now either.
 */
export class MailError extends Error {
  override readonly name = 'MailError';
  readonly outcome: 'refused' | 'failed' | 'interrupted' | 'unreachable';

  constructor(outcome: MailError['outcome'], message: string) {
    super(message);
    this.outcome = outcome;
  }
}

/** Milliseconds for each of: the name, the connection, the server's greeting. */
const connectionTimeoutMs = 10_000;
/** Milliseconds that the server may be silent after a command. */
const silenceTimeoutMs = 20_000;
/** Milliseconds for a whole attempt, with the time that it waits for a connection. Shorter than a claim (outbox.ts). */
const attemptTimeoutMs = 60_000;

/** @param smtpUrl as config/mail.ts accepts it */
export function createSmtpTransport(smtpUrl: string, silenceMs = silenceTimeoutMs): Transport {
  const url = new URL(smtpUrl);
  const host = decodeURIComponent(url.hostname).replaceAll(/[[\]]/g, '');
  const user = decodeURIComponent(url.username);
  const pass = decodeURIComponent(url.password);
  let transporter: Promise<Transporter> | undefined;
  // Loaded for the first mail, because many servers send none: it takes 0.1 s of a start.
  const open = async () => {
    const { createTransport } = await import('nodemailer');
    return createTransport({
      pool: true,
      maxConnections: placesMax,
      maxRequeues: 0,
      host,
      ...(url.port === '' ? {} : { port: Number(url.port) }),
      secure: url.protocol === 'smtps:',
      // Credentials are not sent over a network in the clear. Without credentials, TLS is used if the server offers it.
      requireTLS: user !== '' && url.protocol === 'smtp:' && !isLoopbackHost(url.hostname),
      ...(user === '' ? {} : { auth: { user, pass } }),
      connectionTimeout: connectionTimeoutMs,
      greetingTimeout: connectionTimeoutMs,
      dnsTimeout: connectionTimeoutMs,
      socketTimeout: silenceMs,
      // A mail contains no files and nothing from the network.
      disableFileAccess: true,
      disableUrlAccess: true,
    });
  };
  return {
    async send(mail, signal) {
      if (!isMailAddress(mail.to)) throw new MailError('refused', 'not an address that mail can be sent to');
      transporter ??= open();
      try {
        const ending = AbortSignal.any([signal, AbortSignal.timeout(attemptTimeoutMs)]);
        await (await transporter).sendMail({ ...message(mail), signal: ending });
      } catch (error) {
        throw toMailError(error as SmtpError, [user, pass]);
      }
    },
    async check() {
      transporter ??= open();
      try {
        await (await transporter).verify();
      } catch (error) {
        throw new MailError('unreachable', describe(error as SmtpError, [user, pass]));
      }
    },
    rest() {
      transporter?.then((opened) => opened.close());
      transporter = undefined;
    },
  };
}

function message({ messageId, from, to, subject, text, html, unsubscribeUrl }: OutgoingMail) {
  return {
    messageId,
    from,
    to: { name: '', address: to },
    envelope: { from: from.address, to: [to] },
    subject,
    text,
    html,
    headers: {
      // No automatic responses (RFC 3834 section 5).
      'Auto-Submitted': 'auto-generated',
      ...(unsubscribeUrl === null
        ? {}
        : {
            'List-Unsubscribe': `<${unsubscribeUrl}>`,
            'List-Unsubscribe-Post': 'List-Unsubscribe=One-Click',
          }),
    },
  };
}

interface SmtpError extends Error {
  code?: string;
  /** The command that failed. */
  command?: string;
  responseCode?: number;
}

/** The connection was silent for too long, ended, or was ended because the attempt took too long. */
const interruptions = ['ETIMEDOUT', 'ECONNECTION', 'ESOCKET', 'EABORT'];

/** Responses about the sender's rights and not about the mail (RFC 4954 section 6, RFC 3207 section 4). */
const accessCodes = [530, 534, 535, 538];

function toMailError(error: SmtpError, secrets: readonly string[]): MailError {
  const { code = '', command = '', responseCode = 0 } = error;
  const isOfMail = ['RCPT TO', 'DATA'].includes(command) || code === 'EMESSAGE';
  const text = describe(error, secrets);
  if (isOfMail && responseCode >= 500 && !accessCodes.includes(responseCode))
    return new MailError('refused', text);
  // 421: the server is closing the connection (RFC 5321 section 3.8).
  if (isOfMail && responseCode >= 400 && responseCode !== 421) return new MailError('failed', text);
  // With pipelining, the library does not say which command the 421 is the response to. Before the first mail it has another code.
  const isEnd = responseCode === 0 || (responseCode === 421 && code === 'ECONNECTION');
  const isInterrupted = isOfMail || (isEnd && interruptions.includes(code));
  return new MailError(isInterrupted ? 'interrupted' : 'unreachable', text);
}

function describe({ code, name, message }: SmtpError, secrets: readonly string[]): string {
  return hideSecrets(`${code ?? name}: ${message}`, secrets);
}

/** A server may repeat what it received. */
function hideSecrets(text: string, [user = '', pass = '']: readonly string[]): string {
  if (pass === '') return text;
  const base64 = (secret: string) => Buffer.from(secret).toString('base64');
  const shapes = [pass, encodeURIComponent(pass), base64(pass), base64(`\0${user}\0${pass}`)];
  return shapes.reduce((shown, secret) => shown.replaceAll(secret, '***'), text);
}

/** A mail that was not sent but kept. */
export interface KeptMail extends OutgoingMail {
  /** Counts the mails of this process. */
  number: number;
  at: Date;
}

/** The mails of a server in development, in memory. */
export interface MailBox {
  /** Newest first. */
  list(): readonly KeptMail[];
  find(number: number): KeptMail | undefined;
}

/** Maximum number of mails. The oldest are forgotten. */
const keptMax = 100;

export function createMailBox(): Transport & MailBox {
  const kept: KeptMail[] = [];
  let last = 0;
  return {
    async send(mail) {
      last += 1;
      kept.unshift({ ...mail, number: last, at: new Date() });
      kept.length = Math.min(kept.length, keptMax);
    },
    async check() {},
    rest() {},
    list: () => kept,
    find: (number) => kept.find((mail) => mail.number === number),
  };
}
