/** Names of the built-in kinds. The catalogue defines them. */

export const pingName = 'ping';
export const disabledName = 'subscription.disabled';
export const failingName = 'subscription.failing';
