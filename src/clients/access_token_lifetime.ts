/**
 * Lifetime of access tokens: 15 minutes, or less if the operator configures it for a client or a resource server. It
 * cannot be longer, because entries of the withdrawal list expire after 15 minutes.
 */

/** Seconds. */
export const accessTokenSeconds = 900;
export const accessTokenSecondsMin = 60;

/** Whether the value is a valid lifetime in seconds. */
export function isAccessTokenLifetime(value: unknown): value is number {
  return (
    Number.isSafeInteger(value) &&
    Number(value) >= accessTokenSecondsMin &&
    Number(value) <= accessTokenSeconds
  );
}
