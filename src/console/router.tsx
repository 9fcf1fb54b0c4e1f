/** The pages of the console by their addresses. Each is loaded when it is first looked at. */

import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  redirect,
} from '@tanstack/react-router';
import { NotFound } from './pages/not_found.tsx';
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
    throw redirect({ to: '/subscriptions' });
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

const routeTree = root.addChildren([home, subscriptions, newSubscription, subscription]);

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
