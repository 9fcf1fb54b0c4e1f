/** The parts of the page of an app, as its address names them. */

export const appTabs = ['overview', 'credentials', 'try', 'subscriptions', 'members', 'settings'] as const;

export type AppTab = (typeof appTabs)[number];
