/** Changes and deletes an app. */

import { useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { Trash2 } from 'lucide-react';
import { useState } from 'react';
import { appQuery } from '../../api/apps.ts';
import type { App } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { Card } from '../../ui/page.tsx';
import { Notice } from '../../ui/states.tsx';
import { tell } from '../../ui/toasts.tsx';
import { draftOf, endsVerification, toPatch } from './draft.ts';
import { AppForm } from './form.tsx';
import { LogoCard } from './logo_card.tsx';
import { forgetSecret } from './shown_secrets.ts';

const origins: Readonly<Record<string, string>> = {
  operator: 'The operator of this server registered it and manages it.',
  registration: 'It registered itself through the API and is changed there.',
  document: 'Its settings come from the metadata document at its client ID.',
};

export function AppSettings({ app }: { app: App }) {
  const elsewhere = origins[app.origin];
  if (elsewhere !== undefined) {
    return (
      <Notice title="This app is managed elsewhere">
        <p>{elsewhere}</p>
      </Notice>
    );
  }
  return (
    <div className="stack-large">
      <LogoCard app={app} />
      <Form app={app} />
      <DeleteCard app={app} />
    </div>
  );
}

function Form({ app }: { app: App }) {
  const cache = useQueryClient();
  const id = app.client_id;
  const first = draftOf(app);
  return (
    <AppForm
      key={app.updated_at}
      first={first}
      action="Save"
      warn={(draft) =>
        app.state === 'verified' &&
        endsVerification(toPatch(first, draft)) && (
          <Notice look="warn" title="Saving removes the verification" role="status">
            <p>An administrator verified the app with the settings it has now.</p>
          </Notice>
        )
      }
      onSubmit={async (draft) => {
        const changed = await request('PATCH /apps/{id}', { path: { id }, body: toPatch(first, draft) });
        cache.setQueryData(appQuery(id).queryKey, changed);
        await cache.invalidateQueries({ queryKey: ['apps'] });
        tell('Saved.');
      }}
    />
  );
}

function DeleteCard({ app }: { app: App }) {
  const [isOpen, setOpen] = useState(false);
  const cache = useQueryClient();
  const navigate = useNavigate();
  const id = app.client_id;
  const isAllowed = app.role !== 'developer';
  return (
    <>
      <Card
        isDanger
        title="Delete this app"
        description={
          isAllowed
            ? 'Disconnects every user and deletes the app’s tokens, secrets and subscriptions.'
            : 'Only an owner can delete the app.'
        }
        actions={
          isAllowed && (
            <Button look="danger" onPress={() => setOpen(true)}>
              <Trash2 size={16} aria-hidden /> Delete app
            </Button>
          )
        }
      />
      <ConfirmDialog
        title={`Delete ${app.client_name}?`}
        action="Delete permanently"
        typed={app.client_name}
        isOpen={isOpen}
        onClose={() => setOpen(false)}
        onConfirm={async () => {
          await request('DELETE /apps/{id}', { path: { id } });
          await navigate({ to: '/apps' });
          forgetSecret(id);
          cache.removeQueries({ queryKey: ['app', id] });
          await cache.invalidateQueries({ queryKey: ['apps'] });
          tell(`${app.client_name} deleted.`);
        }}
      >
        <p>
          This disconnects every user and deletes every token and subscription of the app. It cannot be
          undone.
        </p>
      </ConfirmDialog>
    </>
  );
}
