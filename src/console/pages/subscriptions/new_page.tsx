/** Makes a subscription, and shows its secret. */

import { useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { request } from '../../api/request.ts';
import { Page } from '../../ui/page.tsx';
import { tell } from '../../ui/toasts.tsx';
import { emptyDraft, toBody } from './draft.ts';
import { SubscriptionForm } from './form.tsx';

export function NewSubscriptionPage() {
  const navigate = useNavigate();
  const cache = useQueryClient();
  return (
    <Page
      title="New subscription"
      description="Have a URL told of events as they happen."
      crumbs={[{ title: 'Subscriptions', to: '/subscriptions' }]}
    >
      <SubscriptionForm
        first={emptyDraft}
        action="Subscribe"
        onCancel={() => navigate({ to: '/subscriptions' })}
        onSubmit={async (draft) => {
          const { id } = await request('POST /subscriptions', { body: toBody(draft) });
          await cache.invalidateQueries({ queryKey: ['subscriptions'] });
          tell('Subscribed. Send a test event to see it arrive.');
          await navigate({ to: '/subscriptions/$id', params: { id } });
        }}
      />
    </Page>
  );
}
