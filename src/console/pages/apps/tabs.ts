/** The tabs of the app page, as in its URL. */

export const appTabs = [
  'overview',
  'credentials',
  'subscriptions',
  'connections',
  'members',
  'settings',
] as const;

export type AppTab = (typeof appTabs)[number];
