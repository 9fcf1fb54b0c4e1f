/**
 * How long access tokens live: 15 minutes, or less where the operator says so of a client or of an API elsewhere.
 * Never more: the withdrawal list is kept for as long as any access token can live.
 */

/** Seconds. */
export const accessTokenSeconds = 900;
export const accessTokenSecondsMin = 60;

/** Whether a number may be the life of access tokens, in seconds. */
export function isAccessTokenLife(value: unknown): value is number {
  return (
    Number.isSafeInteger(value) &&
    Number(value) >= accessTokenSecondsMin &&
    Number(value) <= accessTokenSeconds
  );
}
