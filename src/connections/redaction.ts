/** Removes secrets from the text of a trace and of the log. What apps send is untrusted, and may be in the wrong place. */

import { isCostlyUrl } from '../shared/url.ts';

/** Parameters whose values appear in no explanation. */
const secretParameters = [
  'access_token',
  'actor_token',
  'assertion',
  'client_assertion',
  'client_secret',
  'code',
  'code_challenge',
  'code_verifier',
  'device_code',
  'id_token_hint',
  'login_hint',
  'nonce',
  'password',
  'refresh_token',
  'registration_access_token',
  'request',
  'request_uri',
  'state',
  'subject_token',
  'token',
  'user_code',
  'username',
] as const;

/** Maximum length of an explanation in characters. */
const explanationLengthMax = 600;
/** Characters of a text in which secrets are looked for. */
const searchedMax = 1_200;
/** A longer secret is found by its first characters. */
const markLength = 64;
/** Maximum length of the id of an unknown app in characters. */
const unknownIdLengthMax = 200;
/** No app has a longer id. */
const clientIdLengthMax = 2_048;
const hidden = '[hidden]';
const tokenForm = /\beyJ[\w-]{8,}(?:\.[\w-]*)*/g;
/** Secrets of subscriptions. Their base64 has characters that also separate words. */
const webhookSecretForm = /\bwhsec_[A-Za-z0-9+/=_-]{8,}/g;
/** Long random text, which is how secrets look. Ids have the form of a UUID, or are URLs. */
const randomForm = /(?<![\w./~+-])[A-Za-z0-9_~+-]{32,}(?![\w./-])/g;
const idForm = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
/** Names of parameters and metadata, such as `pushed_authorization_request_endpoint`. */
const parameterForm = /^[a-z]{2,20}(?:_[a-z]{2,20})+$/;
/** Control characters, and those that hide text or change its direction. */
const invisibleCharacters = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+/gu;
const printableAscii = /^[ -~]*$/;

/**
 * @param params the parameters of the request, whose secret ones are removed from the text
 * @returns text of limited length without secrets and control characters, which PostgreSQL can store
 */
export function redact(text: string, params: Readonly<Record<string, unknown>> = {}): string {
  // Shorter values are words of the explanation itself.
  const secrets = secretParameters
    .map((name) => params[name])
    .filter((value) => typeof value === 'string')
    .filter(({ length }) => length >= 4);
  const redacted = withoutSecrets(text, secrets)
    // Without the punctuation of the sentence around it.
    .replace(/https?:\/\/[^\s"'<>]*[^\s"'<>.,;:!)]/gi, (url) => withoutQuery(url))
    .replace(tokenForm, hidden)
    .replace(webhookSecretForm, hidden)
    .replace(randomForm, (word) => (idForm.test(word) || parameterForm.test(word) ? word : hidden));
  return printable(redacted, explanationLengthMax);
}

/** All secrets are looked for in the text as it came: what is put in their place may be another one, and texts would double with each. */
function withoutSecrets(text: string, secrets: readonly string[]): string {
  const searched = text.slice(0, searchedMax);
  const isSecret = new Uint8Array(searched.length);
  for (const secret of secrets) {
    const mark = secret.slice(0, markLength);
    for (let at = searched.indexOf(mark); at >= 0; at = searched.indexOf(mark, at + mark.length)) {
      isSecret.fill(1, at, at + secret.length);
    }
  }
  // A secret that is cut is found by no mark.
  const end = text.length > searchedMax ? searchedMax - markLength : searched.length;
  let shown = '';
  for (let at = 0; at < end; ) {
    const isHidden = isSecret[at] === 1;
    const next = isSecret.indexOf(isHidden ? 0 : 1, at);
    const to = next < 0 ? end : Math.min(next, end);
    shown += isHidden ? hidden : searched.slice(at, to);
    at = to;
  }
  return shown;
}

/**
 * The URL without user information, query and fragment, which may carry secrets. Text that is no URL is cut. One whose parts are not known,
 * because to find them would cost much, is hidden.
 */
export function withoutQuery(text: string): string {
  if (isCostlyUrl(text)) return hidden;
  const url = URL.parse(text);
  if (url === null) return printable(text.split(/[?#]/, 1)[0] ?? '', unknownIdLengthMax);
  const query = url.search === '' && url.hash === '' ? '' : '?…';
  // As it was written: a slash, a port or a capital letter is often why it differs from what is registered. Letters of other scripts
  // look like Latin ones, so these are encoded.
  if (url.username === '' && url.password === '' && printableAscii.test(text)) {
    return printable(`${text.split(/[?#]/, 1)[0]}${query}`, unknownIdLengthMax);
  }
  const authority = url.host === '' ? '' : `//${url.host}`;
  return printable(`${url.protocol}${authority}${url.pathname}${query}`, unknownIdLengthMax);
}

/** The id of an app that is not registered, or null if it may be a secret. Secrets are sent as ids by mistake. */
export function unknownClientId(value: unknown): string | null {
  if (typeof value !== 'string' || value === '' || value.length > clientIdLengthMax) return null;
  if (/^https?:\/\//i.test(value)) return withoutQuery(value);
  const shown = redact(value);
  // A long passphrase has the form of a name.
  const isLong = (value.match(randomForm) ?? []).some((word) => !idForm.test(word));
  return isLong || shown.includes(hidden) || shown.includes('@')
    ? null
    : printable(shown, unknownIdLengthMax);
}

/** Well-formed last, because cutting can divide a character, which PostgreSQL refuses. */
function printable(text: string, lengthMax: number): string {
  return text.replace(invisibleCharacters, ' ').slice(0, lengthMax).toWellFormed();
}
