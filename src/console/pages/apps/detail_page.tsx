/** One app: what it is, how to connect it, who works on it. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { Trash2 } from 'lucide-react';
import { useState } from 'react';
import { Tab, TabList, TabPanel, Tabs } from 'react-aria-components';
import { appQuery } from '../../api/apps.ts';
import type { App } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { CodeBlock, CopyButton } from '../../ui/copy.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { Ago } from '../../ui/time.tsx';
import { tell } from '../../ui/toasts.tsx';
import { AppBadge } from './app_badge.tsx';
import { clientSamples } from './client_code.ts';
import { appDraftOf, toAppBody } from './draft.ts';
import { AppForm } from './form.tsx';
import { Members } from './members.tsx';
import { SecretsCard } from './secrets_card.tsx';
import { AppSubscriptions } from './subscriptions.tsx';
import type { AppTab } from './tabs.ts';
import { TryIt } from './try_it.tsx';

const crumbs = [{ title: 'Apps', to: '/apps' }];
const titles: Readonly<Record<AppTab, string>> = {
  overview: 'Overview',
  try: 'Try it',
  subscriptions: 'Subscriptions',
  members: 'Members',
  settings: 'Settings',
};

export function AppPage() {
  const { id } = useParams({ from: '/apps/$id' });
  const { data, error, refetch } = useQuery(appQuery(id));
  if (data === undefined) {
    return (
      <Page title="App" crumbs={crumbs}>
        {error === null ? <Skeletons /> : <Failure error={error} onRetry={refetch} />}
      </Page>
    );
  }
  return <AppDetails app={data} />;
}

function AppDetails({ app }: { app: App }) {
  const { tab = 'overview' } = useSearch({ from: '/apps/$id' });
  const navigate = useNavigate();
  const parts: Readonly<Record<AppTab, (props: { app: App }) => React.ReactNode>> = {
    overview: Overview,
    try: TryIt,
    subscriptions: AppSubscriptions,
    members: Members,
    settings: Settings,
  };
  const tabs = Object.entries(titles).filter(([id]) => id !== 'settings' || app.origin === 'account');
  return (
    <Page
      title={app.client_name}
      beside={<AppBadge state={app.state} />}
      description={app.client_uri ?? undefined}
      crumbs={crumbs}
    >
      {app.state === 'suspended' && (
        <Notice look="bad" title="The operator has suspended this app">
          <p>It gets no tokens and hears of nothing until that is lifted.</p>
        </Notice>
      )}
      <Tabs
        selectedKey={tab}
        onSelectionChange={(key) =>
          void navigate({ to: '.', search: { tab: String(key) as AppTab }, replace: true })
        }
      >
        <TabList className="tab-list" aria-label="Parts of the app">
          {tabs.map(([id, title]) => (
            <Tab key={id} id={id} className="tab">
              {title}
            </Tab>
          ))}
        </TabList>
        {tabs.map(([id]) => {
          const Part = parts[id as AppTab];
          return (
            <TabPanel key={id} id={id} className="tab-panel">
              <Part app={app} />
            </TabPanel>
          );
        })}
      </Tabs>
    </Page>
  );
}

function Overview({ app }: { app: App }) {
  const issuer = document.documentElement.dataset.issuer ?? location.origin;
  const samples = clientSamples(app, issuer);
  return (
    <div className="stack-large">
      <Card title="At a glance">
        <dl className="facts">
          <div>
            <dt>Client id</dt>
            <dd className="row">
              <span className="mono">{app.client_id}</span>
              <CopyButton text={app.client_id} label="Copy the client id" />
            </dd>
          </div>
          <div>
            <dt>Scopes</dt>
            <dd className="kind-tags">
              {app.scope.split(' ').map((scope) => (
                <span key={scope} className="kind-tag">
                  {scope}
                </span>
              ))}
            </dd>
          </div>
          <div>
            <dt>Redirect URIs</dt>
            {app.redirect_uris.map((uri) => (
              <dd key={uri} className="mono">
                {uri}
              </dd>
            ))}
          </div>
          <div>
            <dt>Made</dt>
            <dd>
              <Ago time={app.created_at} />
            </dd>
          </div>
        </dl>
      </Card>
      {app.secrets.length > 0 && <SecretsCard app={app} />}
      <Card title="Connect it" description="Ready to be pasted, with what this app is.">
        <Tabs>
          <TabList className="tab-list" aria-label="Library">
            {samples.map(({ language }) => (
              <Tab key={language} id={language} className="tab">
                {language}
              </Tab>
            ))}
          </TabList>
          {samples.map(({ language, code }) => (
            <TabPanel key={language} id={language} className="tab-panel">
              <CodeBlock label={`${language} code`} title="Connect a user" code={code} />
            </TabPanel>
          ))}
        </Tabs>
      </Card>
      {app.role !== 'developer' && app.origin === 'account' && <DeleteCard app={app} />}
    </div>
  );
}

function Settings({ app }: { app: App }) {
  const cache = useQueryClient();
  const id = app.client_id;
  return (
    <AppForm
      key={app.updated_at}
      first={appDraftOf(app)}
      action="Save"
      notice={
        app.state === 'verified'
          ? 'A new name, logo, home page or redirect URI makes the app unverified until the operator has looked at it.'
          : null
      }
      onSubmit={async (draft) => {
        const { token_endpoint_auth_method: _method, ...body } = toAppBody(draft);
        const changed = await request('PATCH /apps/{id}', { path: { id }, body });
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
  return (
    <>
      <Card
        isDanger
        title="Delete"
        description="All that users allowed it ends, with its tokens and subscriptions."
        actions={
          <Button look="danger" onPress={() => setOpen(true)}>
            <Trash2 size={16} aria-hidden /> Delete
          </Button>
        }
      />
      <ConfirmDialog
        title={`Delete ${app.client_name}?`}
        action="Delete"
        isOpen={isOpen}
        onClose={() => setOpen(false)}
        onConfirm={async () => {
          await request('DELETE /apps/{id}', { path: { id } });
          await navigate({ to: '/apps' });
          cache.removeQueries({ queryKey: ['app', id] });
          await cache.invalidateQueries({ queryKey: ['apps'] });
          tell('Deleted.');
        }}
      >
        <p>Every user is disconnected from it at once. This cannot be undone.</p>
      </ConfirmDialog>
    </>
  );
}
