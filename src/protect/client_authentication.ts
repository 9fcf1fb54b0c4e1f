/**
 * Client authentication with `client_secret_basic`.
 */

/** RFC 6749 section 2.3.1: both parts are form-encoded before they are joined. */
export function clientAuthorization(clientId: string, clientSecret: string): string {
  return `Basic ${Buffer.from(`${formEncode(clientId)}:${formEncode(clientSecret)}`).toString('base64')}`;
}

function formEncode(text: string): string {
  return new URLSearchParams([['', text]]).toString().slice(1);
}
