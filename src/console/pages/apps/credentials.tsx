/** The app's client ID and its secrets: at most two, each shown once. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { KeyRound, Plus } from 'lucide-react';
import { useState } from 'react';
import { membersQuery } from '../../api/apps.ts';
import type { App } from '../../api/generated.ts';
import { userQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { Card } from '../../ui/page.tsx';
import { Empty, Notice } from '../../ui/states.tsx';
import { Ago } from '../../ui/time.tsx';
import { tell } from '../../ui/toasts.tsx';
import { useAction } from '../../ui/use_action.ts';
import { forgetSecret, keepSecret, useShownSecret } from './shown_secrets.ts';
import { authMethods, hasSecret } from './words.ts';

const secretsMax = 2;

type AppSecret = App['secrets'][number];

export function Credentials({ app }: { app: App }) {
  return (
    <div className="stack-large">
      <NewSecret app={app} />
      <Card title="Client ID" description="Identifies the app. It is not secret.">
        <div className="secret">
          <code>{app.client_id}</code>
          <CopyButton text={app.client_id} label="Copy the client ID" />
        </div>
      </Card>
      {hasSecret(app.token_endpoint_auth_method) ? <Secrets app={app} /> : <NoSecrets app={app} />}
    </div>
  );
}

function NewSecret({ app }: { app: App }) {
  const shown = useShownSecret(app.client_id);
  if (shown === undefined) return null;
  return (
    <Notice look="good" title="Copy the secret now. It is shown only once." role="status">
      <div className="secret">
        <code>{shown.value}</code>
        <CopyButton text={shown.value} label="Copy the secret" />
      </div>
      <p className="soft small">
        Store it with your app’s other secrets. The server keeps only a hash of it.
      </p>
      <div>
        <Button isSmall onPress={() => forgetSecret(app.client_id)}>
          I saved it
        </Button>
      </div>
    </Notice>
  );
}

function NoSecrets({ app }: { app: App }) {
  const method = authMethods.find(({ id }) => id === app.token_endpoint_auth_method);
  return (
    <Card title="Secrets">
      <Empty icon={KeyRound} title="This app has no secret">
        {method?.description ?? `It authenticates with ${app.token_endpoint_auth_method}.`}
      </Empty>
    </Card>
  );
}

function Secrets({ app }: { app: App }) {
  const id = app.client_id;
  const cache = useQueryClient();
  const { isPending, run } = useAction();
  const add = () =>
    run(async () => {
      const made = await request('POST /apps/{id}/secrets', { path: { id }, body: {} });
      keepSecret(id, made.id, made.client_secret);
      await cache.invalidateQueries({ queryKey: ['app', id] });
    });
  const isFull = app.secrets.length >= secretsMax;
  const isManagedHere = app.origin === 'account';
  return (
    <Card
      title="Secrets"
      description={
        isManagedHere
          ? 'Up to two secrets work at the same time. To rotate, create a new secret, deploy it, then delete the old one.'
          : 'They are created and deleted where the app is managed.'
      }
      isFlush
      actions={
        isManagedHere && (
          <Button isSmall isDisabled={isFull} isPending={isPending} onPress={add}>
            <Plus size={16} aria-hidden /> New secret
          </Button>
        )
      }
      foot={
        isFull && isManagedHere ? (
          <p className="soft small">Delete a secret before you create another one.</p>
        ) : undefined
      }
    >
      {app.secrets.length === 0 ? (
        <Empty icon={KeyRound} title="No secrets yet">
          The app needs a secret to authenticate.
        </Empty>
      ) : (
        <ul className="list-rows">
          {app.secrets.map((secret, index) => (
            <SecretRow key={secret.id} app={app} secret={secret} number={index + 1} />
          ))}
        </ul>
      )}
    </Card>
  );
}

function SecretRow({ app, secret, number }: { app: App; secret: AppSecret; number: number }) {
  const [isAsking, setAsking] = useState(false);
  const cache = useQueryClient();
  const shown = useShownSecret(app.client_id);
  const id = app.client_id;
  const isLast = app.secrets.length === 1;
  return (
    <li className="row-between">
      <div>
        <strong>Secret {number}</strong>
        <p className="soft small">
          Created <Ago time={secret.created_at} />
          <MadeBy app={app} accountId={secret.created_by} />
        </p>
      </div>
      {isLast ? (
        <span className="soft small">The last secret cannot be deleted.</span>
      ) : app.origin !== 'account' ? null : (
        <Button isSmall look="danger" aria-label={`Delete secret ${number}`} onPress={() => setAsking(true)}>
          Delete
        </Button>
      )}
      <ConfirmDialog
        title={`Delete secret ${number}?`}
        action="Delete"
        isOpen={isAsking}
        onClose={() => setAsking(false)}
        onConfirm={async () => {
          await request('DELETE /apps/{id}/secrets/{secret}', { path: { id, secret: secret.id } });
          if (shown?.id === secret.id) forgetSecret(id);
          await cache.invalidateQueries({ queryKey: ['app', id] });
          tell('Secret deleted.');
        }}
      >
        <p>
          Requests with this secret are refused from now on. Tokens that were issued with it stay valid until
          they expire.
        </p>
      </ConfirmDialog>
    </li>
  );
}

function MadeBy({ app, accountId }: { app: App; accountId: string | null }) {
  const { data: user } = useQuery(userQuery);
  const { data: members } = useQuery(membersQuery(app.client_id));
  if (accountId === null) return null;
  if (accountId === user?.sub) return ' by you';
  const member = members?.items.find(({ account }) => account === accountId);
  return ` by ${member?.name ?? member?.email ?? 'a former member'}`;
}
