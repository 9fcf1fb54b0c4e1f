/** A mailer with the settings that tests of it share. */

import { pino } from 'pino';
import { Registry } from 'prom-client';
import { mailAddressOf, mailAddressSql } from '../../../src/accounts/mail_address.ts';
import { Mailer, type MailerOptions } from '../../../src/mail/mailer.ts';

/** It composes nothing and queues nothing by itself. */
export function createTestMailer(
  options: Partial<MailerOptions> & Pick<MailerOptions, 'db' | 'transport'>,
): Mailer {
  return new Mailer({
    from: 'no-reply@acme.example',
    brand: { name: 'Acme', accent: '#3949c6', onAccent: '#ffffff', supportUrl: 'https://acme.example/help' },
    baseUrl: 'https://api.acme.example',
    addressOf: (accountId) => mailAddressOf(options.db, accountId),
    addressSql: mailAddressSql,
    lastKinds: ['newsletter'],
    compose: async () => null,
    prepare: async () => {},
    pauseMs: 1_000,
    logger: pino({ level: 'silent' }),
    registry: new Registry(),
    ...options,
  });
}
