/** One app: overview, credentials, members, subscriptions and settings. */

import { useQuery } from '@tanstack/react-query';
import { useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { TabPanel, Tabs } from 'react-aria-components';
import { appQuery } from '../../api/apps.ts';
import type { App } from '../../api/generated.ts';
import { Page } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { TabList } from '../../ui/tab_list.tsx';
import { AppBadge } from './app_badge.tsx';
import { AppLogo } from './app_logo.tsx';
import { AppConnections } from './connections.tsx';
import { Credentials } from './credentials.tsx';
import { Members } from './members.tsx';
import { Overview } from './overview.tsx';
import { AppSettings } from './settings.tsx';
import { AppSubscriptions } from './subscriptions.tsx';
import type { AppTab } from './tabs.ts';

const crumbs = [{ title: 'Apps', to: '/apps' }];

export function AppPage() {
  const { id } = useParams({ from: '/apps/$id' });
  const { data, error, refetch } = useQuery(appQuery(id));
  if (error !== null) {
    return (
      <Page title="App" crumbs={crumbs}>
        <Failure error={error} onRetry={refetch} />
      </Page>
    );
  }
  if (data === undefined) {
    return (
      <Page title="App" crumbs={crumbs}>
        <Skeletons />
      </Page>
    );
  }
  return <AppDetails key={id} app={data} />;
}

const titles: Readonly<Record<AppTab, string>> = {
  overview: 'Overview',
  credentials: 'Credentials',
  subscriptions: 'Subscriptions',
  connections: 'Connections',
  members: 'Members',
  settings: 'Settings',
};

function tabsOf(app: App): AppTab[] {
  const all = Object.keys(titles) as AppTab[];
  // Deliveries contain users' data: administrators who are not members cannot see them.
  return app.role === 'admin' ? all.filter((tab) => tab !== 'subscriptions') : all;
}

function AppDetails({ app }: { app: App }) {
  const tabs = tabsOf(app);
  const { tab } = useSearch({ from: '/apps/$id' });
  const selected = tabs.find((each) => each === tab) ?? 'overview';
  const navigate = useNavigate();
  return (
    <Page
      title={app.client_name}
      before={<AppLogo app={app} />}
      beside={<AppBadge state={app.state} />}
      crumbs={crumbs}
    >
      <StateNotice app={app} />
      <Tabs
        selectedKey={selected}
        onSelectionChange={(key) =>
          void navigate({ to: '.', search: { tab: String(key) as AppTab }, replace: true })
        }
      >
        <TabList
          label="Sections of the app"
          selected={selected}
          tabs={tabs.map((id) => ({ id, title: titles[id] }))}
        />
        {tabs.map((each) => (
          <TabPanel key={each} id={each} className="tab-panel">
            <Part tab={each} app={app} />
          </TabPanel>
        ))}
      </Tabs>
    </Page>
  );
}

function Part({ tab, app }: { tab: AppTab; app: App }) {
  if (tab === 'credentials') return <Credentials app={app} />;
  if (tab === 'subscriptions') return <AppSubscriptions app={app} />;
  if (tab === 'connections') return <AppConnections app={app} />;
  if (tab === 'members') return <Members app={app} />;
  if (tab === 'settings') return <AppSettings app={app} />;
  return <Overview app={app} />;
}

function StateNotice({ app }: { app: App }) {
  if (app.state === 'suspended') {
    return (
      <Notice look="bad" title="This app is suspended">
        <p>
          An administrator of this server suspended it. Its tokens are refused, users cannot connect it, and
          nothing is delivered to it. Nothing is deleted: the app works again once it is reinstated.
        </p>
      </Notice>
    );
  }
  if (app.role !== 'admin') return null;
  return (
    <Notice title="You are viewing this app as an administrator">
      <p>You are not a member of it. Your changes are recorded in the audit log under your name.</p>
    </Notice>
  );
}
