/** The parts of the page of a subscription, as its address names them. */

export const subscriptionTabs = ['overview', 'deliveries', 'health', 'settings'] as const;

export type SubscriptionTab = (typeof subscriptionTabs)[number];
