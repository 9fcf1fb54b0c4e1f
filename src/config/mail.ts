/** The settings of outgoing mail. */

import type { Environment } from './environment.ts';

export interface MailSettings {
  /** `smtp://` or `smtps://`, optionally with credentials; null if no mail is sent. */
  readonly smtpUrl: string | null;
  /** The sender's address. */
  readonly mailFrom: string;
}

const acceptedUrl =
  'a URL like smtp://user:password@mail.example.com:587, or smtps:// for TLS from the start';
/** Characters that RFC 5322 section 3.2.3 gives a meaning in a list of addresses are refused. */
const address = /^[^\s\p{Cc}@<>()[\]\\,;:"]+@[^\s\p{Cc}@<>()[\]\\,;:"]+$/u;

/** Whether mail can be sent to or from the address. */
export function isMailAddress(text: string): boolean {
  return text.length <= 254 && address.test(text);
}

/** @param problems gets a line for each mistake */
export function readMailSettings(
  environment: Environment,
  baseUrl: string | undefined,
  problems: string[],
): MailSettings {
  const { NUNCIO_SMTP_URL: url, NUNCIO_MAIL_FROM: from } = environment;
  const host = baseUrl === undefined ? 'localhost' : new URL(baseUrl).hostname;
  // The message must not contain the password.
  if (url !== undefined && !isSmtpUrl(url))
    problems.push(`NUNCIO_SMTP_URL is invalid: it must be ${acceptedUrl}`);
  if (from !== undefined && !isMailAddress(from)) {
    problems.push(
      `NUNCIO_MAIL_FROM is ${JSON.stringify(from)}: it must be an e-mail address like no-reply@example.com`,
    );
  }
  const isAddressHost = host.startsWith('[') || /^[\d.]+$/.test(host);
  if (url !== undefined && from === undefined && isAddressHost) {
    problems.push(
      'NUNCIO_MAIL_FROM is not set: with NUNCIO_SMTP_URL it is required while the base URL has an IP address',
    );
  }
  return { smtpUrl: url ?? null, mailFrom: from ?? `no-reply@${isAddressHost ? 'localhost' : host}` };
}

function isSmtpUrl(text: string): boolean {
  const url = URL.parse(text);
  if (url === null || !['smtp:', 'smtps:'].includes(url.protocol) || url.hostname === '') return false;
  if (!['', '/'].includes(url.pathname) || url.search !== '' || url.hash !== '' || url.port === '0')
    return false;
  if ((url.username === '') !== (url.password === '')) return false;
  try {
    decodeURIComponent(url.username + url.password + url.hostname);
    return true;
  } catch {
    return false;
  }
}
