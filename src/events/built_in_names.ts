/** Names of the built-in kinds. The catalogue defines them. */

export const pingName = 'ping';
export const disabledName = 'subscription.disabled';
export const failingName = 'subscription.failing';

/** Only the server publishes these kinds, and addresses each event to certain subscriptions. Any subscription can receive them. */
export const builtInNames: readonly string[] = [pingName, disabledName, failingName];
