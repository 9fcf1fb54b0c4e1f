/** Creates an app. */

import { useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { request } from '../../api/request.ts';
import { Page } from '../../ui/page.tsx';
import { tell } from '../../ui/toasts.tsx';
import { emptyDraft, toBody } from './draft.ts';
import { AppForm } from './form.tsx';
import { keepSecret } from './shown_secrets.ts';

export function NewAppPage() {
  const navigate = useNavigate();
  const cache = useQueryClient();
  return (
    <Page
      title="New app"
      description="Register an app that users can connect to their accounts."
      crumbs={[{ title: 'Apps', to: '/apps' }]}
    >
      <AppForm
        isNew
        first={emptyDraft}
        action="Create app"
        onCancel={() => navigate({ to: '/apps' })}
        onSubmit={async (draft) => {
          const made = await request('POST /apps', { body: toBody(draft) });
          const id = made.client_id;
          if (made.client_secret !== undefined) keepSecret(id, made.secrets[0]?.id ?? '', made.client_secret);
          await cache.invalidateQueries({ queryKey: ['apps'] });
          tell(`${made.client_name} created.`);
          await navigate({ to: '/apps/$id', params: { id }, search: { tab: 'credentials' } });
        }}
      />
    </Page>
  );
}
