/** An SMTP server that keeps the mails it accepts. */

import type { AddressInfo } from 'node:net';
import { type ParsedMail, simpleParser } from 'mailparser';
import { SMTPServer, type SMTPServerOptions } from 'smtp-server';
import { until } from '../webhooks/apps.ts';

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

export interface ReceivedMail {
  /** Addresses of the envelope. */
  from: string;
  to: string[];
  /** The message as it was sent. */
  raw: string;
  parsed: ParsedMail;
}

export interface SmtpInbox {
  /** For `NUNCIO_SMTP_URL`. */
  url: string;
  /** In the order of arrival. */
  mails: ReceivedMail[];
  /** Recipients of all attempts, refused ones included. */
  attempts: string[];
  /** Returns the response to a recipient, as `450 try later`; undefined accepts it. */
  refuse: (recipient: string) => string | undefined;
  /** The response to this recipient waits for the promise. By default it comes at once. */
  hold: (recipient: string) => Promise<void> | undefined;
  /** Waits for the mails of an address. */
  waitFor: (address: string, count?: number) => Promise<ReceivedMail[]>;
  /** Stops listening, and listens again on the same port. */
  stop: () => Promise<void>;
  restart: () => Promise<void>;
}

/** @param options of `smtp-server`; by default it needs no credentials and has no TLS */
export async function startSmtpServer(scope: Scope, options: SMTPServerOptions = {}): Promise<SmtpInbox> {
  let server: SMTPServer;
  let port = 0;
  const open = async () => {
    server = new SMTPServer({
      disabledCommands: options.onAuth === undefined ? ['AUTH', 'STARTTLS'] : ['STARTTLS'],
      authOptional: options.onAuth === undefined,
      allowInsecureAuth: true,
      logger: false,
      ...options,
      async onRcptTo({ address }, _session, done) {
        inbox.attempts.push(address);
        await inbox.hold(address);
        const refusal = inbox.refuse(address);
        if (refusal === undefined) return done();
        done(Object.assign(new Error(refusal.slice(4)), { responseCode: Number(refusal.slice(0, 3)) }));
      },
      onData(stream, session, done) {
        const chunks: Buffer[] = [];
        stream.on('data', (chunk: Buffer) => chunks.push(chunk));
        stream.on('end', async () => {
          const raw = Buffer.concat(chunks);
          const { mailFrom, rcptTo } = session.envelope;
          inbox.mails.push({
            from: mailFrom === false ? '' : mailFrom.address,
            to: rcptTo.map(({ address }) => address),
            raw: raw.toString(),
            parsed: await simpleParser(raw),
          });
          done();
        });
      },
    });
    server.on('error', () => {});
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    port = (server.server.address() as AddressInfo).port;
  };
  const stop = () => new Promise<void>((resolve) => server.close(resolve));
  const inbox: SmtpInbox = {
    url: '',
    mails: [],
    attempts: [],
    refuse: () => undefined,
    hold: () => undefined,
    waitFor: async (address, count = 1) => {
      const found = async () => inbox.mails.filter(({ to }) => to.includes(address));
      return until(found, (mails) => mails.length >= count);
    },
    stop,
    restart: open,
  };
  await open();
  inbox.url = `smtp://127.0.0.1:${port}`;
  scope.after(stop);
  return inbox;
}
