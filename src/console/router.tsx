/** The console's routes. Pages load on first use. */

import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  redirect,
} from '@tanstack/react-router';
import { type AppTab, appTabs } from './pages/apps/tabs.ts';
import { NotFound } from './pages/not_found.tsx';
import { readAuditSearch } from './pages/operator/audit_search.ts';
import { type SubscriptionTab, subscriptionTabs } from './pages/subscriptions/tabs.ts';
import { Shell } from './shell/shell.tsx';
import { Failure, Skeletons } from './ui/states.tsx';

const root = createRootRoute({
  component: Shell,
  notFoundComponent: NotFound,
});

const home = createRoute({
  getParentRoute: () => root,
  path: '/',
  beforeLoad: () => {
    throw redirect({ to: '/apps' });
  },
});

const subscriptions = createRoute({
  getParentRoute: () => root,
  path: '/subscriptions',
  component: lazyRouteComponent(() => import('./pages/subscriptions/list_page.tsx'), 'SubscriptionsPage'),
});

const newSubscription = createRoute({
  getParentRoute: () => root,
  path: '/subscriptions/new',
  validateSearch: (search): { app?: string } => (typeof search.app === 'string' ? { app: search.app } : {}),
  component: lazyRouteComponent(() => import('./pages/subscriptions/new_page.tsx'), 'NewSubscriptionPage'),
});

const subscription = createRoute({
  getParentRoute: () => root,
  path: '/subscriptions/$id',
  validateSearch: (search): { tab?: SubscriptionTab } => {
    const tab = subscriptionTabs.find((each) => each === search.tab);
    return tab === undefined ? {} : { tab };
  },
  component: lazyRouteComponent(() => import('./pages/subscriptions/detail_page.tsx'), 'SubscriptionPage'),
});

const deliveries = createRoute({
  getParentRoute: () => root,
  path: '/deliveries',
  validateSearch: (search): { subscription?: string } =>
    typeof search.subscription === 'string' ? { subscription: search.subscription } : {},
  component: lazyRouteComponent(() => import('./pages/deliveries/list_page.tsx'), 'DeliveriesPage'),
});

const delivery = createRoute({
  getParentRoute: () => root,
  path: '/deliveries/$id',
  component: lazyRouteComponent(() => import('./pages/deliveries/detail_page.tsx'), 'DeliveryPage'),
});

const apps = createRoute({
  getParentRoute: () => root,
  path: '/apps',
  component: lazyRouteComponent(() => import('./pages/apps/list_page.tsx'), 'AppsPage'),
});

const newApp = createRoute({
  getParentRoute: () => root,
  path: '/apps/new',
  component: lazyRouteComponent(() => import('./pages/apps/new_page.tsx'), 'NewAppPage'),
});

const app = createRoute({
  getParentRoute: () => root,
  path: '/apps/$id',
  validateSearch: (search): { tab?: AppTab } => {
    const tab = appTabs.find((each) => each === search.tab);
    return tab === undefined ? {} : { tab };
  },
  component: lazyRouteComponent(() => import('./pages/apps/detail_page.tsx'), 'AppPage'),
});

const health = createRoute({
  getParentRoute: () => root,
  path: '/health',
  validateSearch: (search): { of?: string } => (typeof search.of === 'string' ? { of: search.of } : {}),
  component: lazyRouteComponent(() => import('./pages/health/page.tsx'), 'HealthPage'),
});

const events = createRoute({
  getParentRoute: () => root,
  path: '/events',
  validateSearch: (search): { kind?: string } =>
    typeof search.kind === 'string' ? { kind: search.kind } : {},
  component: lazyRouteComponent(() => import('./pages/events/page.tsx'), 'EventsPage'),
});

const notices = createRoute({
  getParentRoute: () => root,
  path: '/notices',
  component: lazyRouteComponent(() => import('./pages/notices/page.tsx'), 'NoticesPage'),
});

const overview = createRoute({
  getParentRoute: () => root,
  path: '/operator',
  component: lazyRouteComponent(() => import('./pages/operator/overview_page.tsx'), 'OverviewPage'),
});

const accounts = createRoute({
  getParentRoute: () => root,
  path: '/operator/accounts',
  validateSearch: (search): { account?: string } =>
    typeof search.account === 'string' ? { account: search.account } : {},
  component: lazyRouteComponent(() => import('./pages/operator/accounts_page.tsx'), 'AccountsPage'),
});

const allApps = createRoute({
  getParentRoute: () => root,
  path: '/operator/apps',
  component: lazyRouteComponent(() => import('./pages/operator/apps_page.tsx'), 'AllAppsPage'),
});

const allSubscriptions = createRoute({
  getParentRoute: () => root,
  path: '/operator/subscriptions',
  component: lazyRouteComponent(
    () => import('./pages/operator/subscriptions_page.tsx'),
    'AllSubscriptionsPage',
  ),
});

const rejectedEvents = createRoute({
  getParentRoute: () => root,
  path: '/operator/rejected',
  component: lazyRouteComponent(() => import('./pages/operator/rejected_page.tsx'), 'RejectedEventsPage'),
});

const rejectedEvent = createRoute({
  getParentRoute: () => root,
  path: '/operator/rejected/$id',
  component: lazyRouteComponent(
    () => import('./pages/operator/rejected_detail_page.tsx'),
    'RejectedEventPage',
  ),
});

const audit = createRoute({
  getParentRoute: () => root,
  path: '/operator/audit',
  validateSearch: readAuditSearch,
  component: lazyRouteComponent(() => import('./pages/operator/audit_page.tsx'), 'AuditPage'),
});

const connections = createRoute({
  getParentRoute: () => root,
  path: '/operator/connections',
  component: lazyRouteComponent(() => import('./pages/operator/connections_page.tsx'), 'ConnectionsPage'),
});

const doctor = createRoute({
  getParentRoute: () => root,
  path: '/operator/doctor',
  component: lazyRouteComponent(() => import('./pages/operator/doctor_page.tsx'), 'DoctorPage'),
});

const settings = createRoute({
  getParentRoute: () => root,
  path: '/operator/settings',
  component: lazyRouteComponent(() => import('./pages/operator/settings_page.tsx'), 'SettingsPage'),
});

const routeTree = root.addChildren([
  home,
  subscriptions,
  newSubscription,
  subscription,
  deliveries,
  delivery,
  apps,
  newApp,
  health,
  events,
  notices,
  overview,
  accounts,
  allApps,
  allSubscriptions,
  rejectedEvents,
  rejectedEvent,
  audit,
  connections,
  doctor,
  settings,
  app,
]);

export function createConsoleRouter() {
  return createRouter({
    routeTree,
    basepath: '/console',
    defaultPreload: 'intent',
    defaultPendingComponent: () => <Skeletons />,
    defaultErrorComponent: ({ error, reset }) => <Failure error={error} onRetry={reset} />,
    scrollRestoration: true,
  });
}

declare module '@tanstack/react-router' {
  interface Register {
    router: ReturnType<typeof createConsoleRouter>;
  }
}
