/** Which apps may have subscriptions of their own: all apps, verified apps, or only clients that the operator marked. */

export const appSubscriptionModes = ['all', 'verified', 'off'] as const;
export type AppSubscriptions = (typeof appSubscriptionModes)[number];
