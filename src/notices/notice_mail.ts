/** Writes the mail about notices. A URL of a subscription may contain a secret, so mails have only its host. */

import type { Database } from '../database/database.ts';
import {
  type MailContent,
  type MailFact,
  type MailLink,
  type MailSection,
  oneLine,
} from '../mail/content.ts';
import type { Composer } from '../mail/mailer.ts';
import { type Notice, readNotices } from './digest.ts';
import { isNoticeKind, type NoticeKind, noticeEvents } from './kinds.ts';
import { type UnsubscribeTokens, unsubscribePath } from './unsubscribe.ts';

/** Maximum number of subscriptions or apps that a mail lists. */
const listedMax = 20;
/** Maximum characters of a name in a subject or a heading. */
const nameMax = 60;

/** Writes mails about notices. Returns null for a mail of another kind. */
export function composeNotices(db: Database, tokens: UnsubscribeTokens): Composer {
  return async ({ id, kind, accountId }) => {
    if (accountId === null || !isNoticeKind(kind)) return null;
    const notices = await readNotices(db, id);
    if (notices.length === 0) return null;
    const token = tokens.make(accountId, kind);
    return {
      content: describeNotices(kind, notices),
      unsubscribing: {
        about: noticeEvents[kind],
        path: `${unsubscribePath}?${new URLSearchParams({ token })}`,
        settingsPath: '/account#notices',
      },
    };
  };
}

/** @param notices at least one, all of the kind */
function describeNotices(kind: NoticeKind, notices: readonly Notice[]): MailContent {
  const [first] = notices as [Notice];
  const title = notices.length === 1 ? single[kind](subjectOf(first)) : several[kind](notices.length);
  const more = notices.length - listedMax;
  const listed = notices.slice(0, listedMax).map((notice) => section(kind, notice));
  // The button of a single notice leads to the same page.
  const sections = notices.length === 1 ? listed.map(({ link: _link, ...rest }) => rest) : listed;
  const action: MailLink =
    notices.length === 1
      ? { text: pageOf(first).text, path: pageOf(first).path }
      : { text: 'Open the console', path: kind === 'app_suspended' ? '/console/apps' : '/console/health' };
  return {
    subject: title,
    title,
    paragraphs: [explain(kind, notices)],
    sections:
      more > 0
        ? [...sections, { heading: `And ${more} more, which the console shows.`, facts: [] }]
        : sections,
    action,
  };
}

/** What a notice is about, in a sentence. */
function subjectOf({ app, subscription }: Notice): string {
  const name = app === null ? null : `“${oneLine(app.name, nameMax)}”`;
  if (subscription === null) return name ?? 'an app';
  const place = hostOf(subscription.url);
  const what = place === null ? 'the subscription' : `the webhook to ${place}`;
  return name === null ? what : `${what} of ${name}`;
}

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

const single: Readonly<Record<NoticeKind, (subject: string) => string>> = {
  failing: (subject) => `${capital(subject)} keeps failing`,
  disabling: (subject) => `${capital(subject)} will be disabled soon`,
  disabled: (subject) => `${capital(subject)} is disabled`,
  recovered: (subject) => `${capital(subject)} works again`,
  secret_rotated: (subject) => `New secret for ${subject}`,
  app_suspended: (subject) => `Your app ${subject} is suspended`,
};

const several: Readonly<Record<NoticeKind, (count: number) => string>> = {
  failing: (count) => `${count} subscriptions keep failing`,
  disabling: (count) => `${count} subscriptions will be disabled soon`,
  disabled: (count) => `${count} subscriptions are disabled`,
  recovered: (count) => `${count} subscriptions work again`,
  secret_rotated: (count) => `${count} secrets were replaced`,
  app_suspended: (count) => `${count} of your apps are suspended`,
};

const explanations: Readonly<Record<NoticeKind, string>> = {
  failing:
    'No delivery has succeeded since the time below. Deliveries are retried. A subscription is disabled at the given time if none of them succeeds.',
  disabling:
    'No delivery has succeeded for days. A subscription is disabled at the time below unless a delivery succeeds before.',
  disabled:
    'Events are no longer sent to it, but kept for some weeks. Enable a subscription in the console, and recover what it has missed.',
  recovered:
    'Deliveries succeed again. You need not do anything. Deliveries that failed meanwhile can be resent in the console.',
  secret_rotated:
    'If you or another developer of the app did this, you need not do anything. Otherwise check who has access, and replace the secret again.',
  app_suspended:
    'Meanwhile the app gets no tokens, its users’ grants do not work, and it receives no events. To appeal, contact the operator of the server.',
};

/** A secret of a user's own subscription is nobody else's business. */
function explain(kind: NoticeKind, notices: readonly Notice[]): string {
  if (kind === 'secret_rotated' && notices.every(({ app }) => app === null)) {
    return 'If you did this, you need not do anything. Otherwise change your password, and replace the secret again.';
  }
  return explanations[kind];
}

const reasons: Readonly<Record<string, string>> = {
  gone: 'the receiver answered 410 Gone',
  failing: 'deliveries failed for too long',
  operator: 'the operator disabled it',
  password_reset: 'the password of your account was reset',
};

function section(kind: NoticeKind, { app, subscription, details, at }: Notice): MailSection {
  const facts: MailFact[] = [];
  const host = subscription === null ? null : hostOf(subscription.url);
  if (app !== null && subscription !== null) facts.push(['App', app.name]);
  if (subscription !== null && subscription.description !== '')
    facts.push(['Description', subscription.description]);
  if (details.failing_since !== undefined) facts.push(['No success since', time(details.failing_since)]);
  if (details.disables_at !== undefined) facts.push(['Will be disabled on', time(details.disables_at)]);
  if (kind === 'disabled') {
    facts.push(
      ['Reason', reasons[details.reason ?? ''] ?? 'the server disabled it'],
      ['Disabled on', time(at)],
    );
  }
  if (kind === 'secret_rotated') {
    facts.push(
      ['Secret', subscription === null ? 'client secret of the app' : 'signing secret'],
      ['Replaced on', time(at)],
    );
  }
  if (kind === 'app_suspended') facts.push(['Suspended on', time(at)]);
  if (subscription !== null) facts.push(['Subscription', subscription.id]);
  const heading = subscription === null ? (app?.name ?? '') : (host ?? 'Subscription without a URL');
  return { heading, facts, link: pageOf({ app, subscription }) };
}

function pageOf({ app, subscription }: Pick<Notice, 'app' | 'subscription'>): MailLink {
  if (subscription !== null) {
    return {
      text: 'Open the subscription',
      path: `/console/subscriptions/${encodeURIComponent(subscription.id)}`,
    };
  }
  return { text: 'Open the app', path: `/console/apps/${encodeURIComponent(app?.id ?? '')}` };
}

function hostOf(url: string | null): string | null {
  return url === null ? null : (URL.parse(url)?.host ?? null);
}

const timeFormat = new Intl.DateTimeFormat('en', {
  dateStyle: 'medium',
  timeStyle: 'short',
  timeZone: 'UTC',
  hourCycle: 'h23',
});

function time(at: Date | string): string {
  return `${timeFormat.format(new Date(at))} UTC`;
}
