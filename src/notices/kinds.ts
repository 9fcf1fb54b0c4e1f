/** The kinds of notices. Triggers of 0020_mail.sql write notices of these kinds. */

export const noticeKinds = [
  'failing',
  'disabling',
  'disabled',
  'recovered',
  'secret_rotated',
  'app_suspended',
] as const;
export type NoticeKind = (typeof noticeKinds)[number];

/** Kinds about deliveries. The others are about secrets and apps, and are sent first. */
export const deliveryNoticeKinds: readonly NoticeKind[] = ['failing', 'disabling', 'disabled', 'recovered'];

/** What happened. Completes "You get this mail when …". */
export const noticeEvents: Readonly<Record<NoticeKind, string>> = {
  failing: 'deliveries of a subscription keep failing',
  disabling: 'a failing subscription is about to be disabled',
  disabled: 'a subscription is disabled',
  recovered: 'deliveries of a failing subscription succeed again',
  secret_rotated: 'the secret of an app or a subscription is replaced',
  app_suspended: 'one of your apps is suspended',
};

export function isNoticeKind(text: unknown): text is NoticeKind {
  return noticeKinds.includes(text as NoticeKind);
}
