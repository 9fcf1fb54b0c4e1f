/** The tabs of the subscription page, as in its URL. */

export const subscriptionTabs = ['overview', 'deliveries', 'health', 'settings'] as const;

export type SubscriptionTab = (typeof subscriptionTabs)[number];
