/** Makes an app, and shows its secret once. */

import { useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { request } from '../../api/request.ts';
import { Page } from '../../ui/page.tsx';
import { emptyAppDraft, toAppBody } from './draft.ts';
import { AppForm } from './form.tsx';
import { SecretDialog } from './secret_dialog.tsx';

interface Made {
  id: string;
  secret: string;
}

export function NewAppPage() {
  const navigate = useNavigate();
  const cache = useQueryClient();
  const [made, setMade] = useState<Made | null>(null);
  const open = (id: string) => navigate({ to: '/apps/$id', params: { id } });
  return (
    <Page
      title="New app"
      description="An app acts for users who allow it, and hears of what happens to them."
      crumbs={[{ title: 'Apps', to: '/apps' }]}
    >
      <AppForm
        first={emptyAppDraft}
        action="Create app"
        isNew
        onCancel={() => navigate({ to: '/apps' })}
        onSubmit={async (draft) => {
          const app = await request('POST /apps', { body: toAppBody(draft) });
          await cache.invalidateQueries({ queryKey: ['apps'] });
          if (typeof app.client_secret === 'string')
            setMade({ id: app.client_id, secret: app.client_secret });
          else await open(app.client_id);
        }}
      />
      <SecretDialog secret={made?.secret ?? null} onClose={() => void open(made?.id ?? '')} />
    </Page>
  );
}
