/** Creates a subscription and shows its secret. */

import { useQueryClient } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { request } from '../../api/request.ts';
import { Page } from '../../ui/page.tsx';
import { tell } from '../../ui/toasts.tsx';
import { emptyDraft, toBody } from './draft.ts';
import { SubscriptionForm } from './form.tsx';

export function NewSubscriptionPage() {
  const navigate = useNavigate();
  const cache = useQueryClient();
  const { app } = useSearch({ from: '/subscriptions/new' });
  return (
    <Page
      title="New subscription"
      description={
        app === undefined
          ? 'Send your events to a URL as they happen.'
          : 'Send the events of every user who connected the app to a URL.'
      }
      crumbs={[{ title: 'Subscriptions', to: '/subscriptions' }]}
    >
      <SubscriptionForm
        first={emptyDraft}
        action="Create subscription"
        onCancel={() => history.back()}
        onSubmit={async (draft) => {
          const body = toBody(draft);
          const { id } =
            app === undefined
              ? await request('POST /subscriptions', { body })
              : await request('POST /apps/{id}/subscriptions', { path: { id: app }, body });
          await cache.invalidateQueries({ queryKey: ['subscriptions'] });
          if (app !== undefined) await cache.invalidateQueries({ queryKey: ['app', app, 'subscriptions'] });
          tell('Subscription created. Send a test event to see it arrive.');
          await navigate({ to: '/subscriptions/$id', params: { id } });
        }}
      />
    </Page>
  );
}
