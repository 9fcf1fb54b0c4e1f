/** `/notice-settings`: which notices the signed-in account gets by mail. */

import Type from 'typebox';
import { mailAddressOf } from '../../accounts/mail_address.ts';
import { actAs, requireAccount } from '../../grants/actor.ts';
import { links, mergePatchBody, ok } from '../../http/describe.ts';
import { Nullable, named, strict } from '../../http/schema.ts';
import { noticeEvents, noticeKinds } from '../../notices/kinds.ts';
import { changeChoices, type NoticeChoices, readChoices } from '../../notices/preferences.ts';
import { member } from '../admission.ts';
import { route, serve } from '../route.ts';
import type { AppRoutesOptions } from './app_access.ts';
import { tag } from './schemas.ts';

const choices = Object.fromEntries(
  noticeKinds.map((kind) => [kind, Type.Boolean({ description: `Mail when ${noticeEvents[kind]}.` })]),
);
const NoticeSettings = named(
  'NoticeSettings',
  Type.Object(
    {
      email: Nullable(
        Type.String({
          description: 'Where notices are sent. Null: the account has no address, or it is not verified.',
        }),
      ),
      is_mail_on: Type.Boolean({ description: 'Whether this server sends mail.' }),
      kinds: Type.Object(choices, strict),
      _links: links,
    },
    strict,
  ),
);
const NoticeSettingsPatch = named(
  'NoticeSettingsPatch',
  Type.Object({ kinds: Type.Partial(Type.Object(choices, strict), strict) }, strict),
);

export const noticeRoutes = {
  read: route({
    id: 'read_notice_settings',
    method: 'get',
    path: '/notice-settings',
    tag,
    summary: 'Read which notices the signed-in account gets by mail',
    admission: member('read:apps'),
    responses: ok('The settings.', NoticeSettings),
  }),
  patch: route({
    id: 'patch_notice_settings',
    method: 'patch',
    path: '/notice-settings',
    tag,
    summary: 'Change which notices the signed-in account gets by mail',
    admission: member('write:apps'),
    body: mergePatchBody(NoticeSettingsPatch, { kinds: { recovered: false } }),
    responses: ok('The settings.', NoticeSettings),
  }),
};

export function registerNoticeRoutes(options: AppRoutesOptions): void {
  const { db } = options;

  serve(options, noticeRoutes.read, async ({ caller }) => show(requireAccount(caller)));

  serve(options, noticeRoutes.patch, async ({ caller, body }) => {
    const accountId = requireAccount(caller);
    await db.transaction().execute(async (tx) => {
      await actAs(tx, caller);
      await changeChoices(tx, accountId, body.kinds as Partial<NoticeChoices>);
    });
    return show(accountId);
  });

  async function show(accountId: string): Promise<Record<string, unknown>> {
    return {
      email: await mailAddressOf(db, accountId),
      is_mail_on: options.mailing.sendsMail,
      kinds: await readChoices(db, accountId),
      _links: { self: { href: '/notice-settings' } },
    };
  }
}
