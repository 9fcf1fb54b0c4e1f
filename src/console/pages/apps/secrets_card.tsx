/** The client secrets of an app: two may live at once, so that one can be replaced in peace. */

import { useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import type { App } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { Card } from '../../ui/page.tsx';
import { Ago } from '../../ui/time.tsx';
import { tell, tellFailure } from '../../ui/toasts.tsx';
import { SecretDialog } from './secret_dialog.tsx';

const secretsMax = 2;

export function SecretsCard({ app }: { app: App }) {
  const cache = useQueryClient();
  const [shown, setShown] = useState<string | null>(null);
  const [ending, setEnding] = useState<string | null>(null);
  const id = app.client_id;
  const refresh = () => cache.invalidateQueries({ queryKey: ['app', id] });
  const add = async () => {
    try {
      setShown((await request('POST /apps/{id}/secrets', { path: { id } })).client_secret);
    } catch (error) {
      tellFailure(error);
    }
    await refresh();
  };
  return (
    <Card
      title="Client secrets"
      description="Two may live at once: make a new one, change your app, then delete the old one."
      isFlush
      actions={
        <Button isSmall isDisabled={app.secrets.length >= secretsMax} onPress={add}>
          New secret
        </Button>
      }
    >
      <ul className="list-rows">
        {app.secrets.map((secret) => (
          <li key={secret.id} className="row-between">
            <span>
              Made <Ago time={secret.created_at} /> <span className="mono soft">{secret.id.slice(-12)}</span>
            </span>
            <Button
              look="danger"
              isSmall
              isDisabled={app.secrets.length === 1}
              aria-label={`Delete the secret ${secret.id.slice(-12)}`}
              onPress={() => setEnding(secret.id)}
            >
              Delete
            </Button>
          </li>
        ))}
      </ul>
      <SecretDialog secret={shown} onClose={() => setShown(null)} />
      <ConfirmDialog
        title="Delete this secret?"
        action="Delete"
        isOpen={ending !== null}
        onClose={() => setEnding(null)}
        onConfirm={async () => {
          await request('DELETE /apps/{id}/secrets/{secret}', { path: { id, secret: ending ?? '' } });
          await refresh();
          tell('Deleted. Only the other one works now.');
        }}
      >
        <p>Whatever still uses it can get no tokens any more.</p>
      </ConfirmDialog>
    </Card>
  );
}
