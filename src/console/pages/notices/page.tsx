/** Which notices the user gets by mail. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import type { NoticeSettings } from '../../api/generated.ts';
import { noticeSettingsQuery } from '../../api/notices.ts';
import { request } from '../../api/request.ts';
import { SwitchField } from '../../ui/fields.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { useAction } from '../../ui/use_action.ts';

type Kind = keyof NoticeSettings['kinds'];

const kinds: readonly { kind: Kind; title: string; description: string }[] = [
  {
    kind: 'failing',
    title: 'A subscription keeps failing',
    description: 'No delivery has succeeded for two and a half days.',
  },
  {
    kind: 'disabling',
    title: 'A subscription is about to be disabled',
    description: 'A day before a failing subscription is disabled.',
  },
  {
    kind: 'disabled',
    title: 'A subscription is disabled',
    description: 'By the server or the operator. What you disable yourself gives no notice.',
  },
  {
    kind: 'recovered',
    title: 'A failing subscription works again',
    description: 'Deliveries succeed again after you were told that they fail.',
  },
  {
    kind: 'secret_rotated',
    title: 'A secret is replaced',
    description: 'A client secret of an app, or the signing secret of a subscription.',
  },
  {
    kind: 'app_suspended',
    title: 'An app is suspended',
    description: 'The operator has stopped one of your apps.',
  },
];

export function NoticesPage() {
  return (
    <Page
      title="Mail notices"
      description="Mail about your own subscriptions, and about the apps that you develop and their subscriptions. Several notices within an hour come in one mail."
    >
      <Notices />
    </Page>
  );
}

function Notices() {
  const { data, error, refetch } = useQuery(noticeSettingsQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons count={6} />;
  return (
    <Card title="Send mail when" description={explain(data)}>
      <div className="stack">
        {kinds.map((each) => (
          <KindSwitch key={each.kind} {...each} isOn={data.kinds[each.kind]} />
        ))}
      </div>
    </Card>
  );
}

function explain({ email, is_mail_on: isMailOn }: NoticeSettings): string {
  if (!isMailOn) return 'This server sends no mail. Your choices apply when the operator turns mail on.';
  if (email === null) return 'Your account has no verified email address, so you get no mail.';
  return `To ${email}`;
}

function KindSwitch({
  kind,
  title,
  description,
  isOn,
}: {
  kind: Kind;
  title: string;
  description: string;
  isOn: boolean;
}) {
  const cache = useQueryClient();
  const { run } = useAction();
  const change = (next: boolean) =>
    run(
      async () => {
        const changed = await request('PATCH /notice-settings', { body: { kinds: { [kind]: next } } });
        cache.setQueryData(noticeSettingsQuery.queryKey, changed);
      },
      next ? 'Mail is on' : 'Mail is off',
    );
  return <SwitchField label={title} description={description} isSelected={isOn} onChange={change} />;
}
