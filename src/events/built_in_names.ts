/** Names of the kinds that are always there; what they are stands in the catalogue. */

export const pingName = 'ping';
export const disabledName = 'subscription.disabled';
export const failingName = 'subscription.failing';
