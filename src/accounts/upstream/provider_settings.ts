/** The property `accounts.upstream` of `nuncio.config.ts`: OpenID providers that users sign in with. */

import { ConfigError, isLoopbackHost } from '../../config/config.ts';
import { readVariable } from '../../config/environment.ts';

/** What an operator declares of one provider. */
export interface UpstreamDeclaration {
  /** Part of the redirect URI, like `google`. It stays the same as long as the provider is in use. */
  readonly id: string;
  /** What users call the provider: `Continue with <name>`. */
  readonly name: string;
  /** The issuer identifier, letter for letter. https, or http on loopback. */
  readonly issuer: string;
  readonly clientId: string;
  /** The environment variable that holds the client secret. */
  readonly clientSecretEnv: string;
  /**
   * Whether an address that the provider reports as verified (`email_verified`) says whose account it is. False where
   * left out. Set it only for a provider that verifies every address that it reports.
   */
  readonly trustEmail?: boolean;
}

export type UpstreamProvider = Required<UpstreamDeclaration>;

type Report = (place: string, reason: string) => void;

const providersMax = 20;
const nameCharactersMax = 60;
const clientIdCharactersMax = 255;
const issuerCharactersMax = 512;

/** @param report told of each problem with its place */
export function readUpstreamProviders(declared: unknown, report: Report): readonly UpstreamProvider[] {
  if (declared === undefined) return Object.freeze([]);
  const place = 'accounts.upstream';
  if (!Array.isArray(declared) || declared.length > providersMax) {
    report(place, `it may be an array of up to ${providersMax} providers`);
    return Object.freeze([]);
  }
  const providers = declared.flatMap(
    (value: unknown, index) => readProvider(value, `${place}[${index}]`, report) ?? [],
  );
  reportTwice(providers, ({ id }) => id, 'id', report);
  reportTwice(providers, ({ issuer }) => URL.parse(issuer)?.href ?? issuer, 'issuer', report);
  return Object.freeze(providers);
}

function readProvider(value: unknown, place: string, report: Report): UpstreamProvider | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    report(place, 'it may be { id, name, issuer, clientId, clientSecretEnv, trustEmail? }');
    return undefined;
  }
  const {
    id,
    name,
    issuer,
    clientId,
    clientSecretEnv,
    trustEmail = false,
    ...others
  } = value as Record<string, unknown>;
  for (const other of Object.keys(others)) report(`${place}.${other}`, 'there is no such setting');
  const check = (isRight: boolean, member: string, mayBe: string) => {
    if (!isRight) report(`${place}.${member}`, `it may be ${mayBe}`);
    return isRight;
  };
  const isRight = [
    check(
      isText(id, /^[a-z][a-z0-9-]{0,31}$/),
      'id',
      'a lower-case word of up to 32 letters, digits and hyphens',
    ),
    check(
      isText(name, /^(?=.*\S)\P{C}+$/u) && [...(name as string)].length <= nameCharactersMax,
      'name',
      `1 to ${nameCharactersMax} characters`,
    ),
    check(isIssuer(issuer), 'issuer', issuerMayBe),
    check(
      isText(clientId, /^[\x20-\x7e]+$/) && (clientId as string).length <= clientIdCharactersMax,
      'clientId',
      `1 to ${clientIdCharactersMax} printable ASCII characters`,
    ),
    check(
      isText(clientSecretEnv, /^(?!NUNCIO_)[A-Z][A-Z0-9_]{0,127}$/) && clientSecretEnv !== 'DATABASE_URL',
      'clientSecretEnv',
      'the name of an environment variable that does not begin with NUNCIO_, like GOOGLE_CLIENT_SECRET',
    ),
    check(typeof trustEmail === 'boolean', 'trustEmail', 'true or false'),
  ].every(Boolean);
  return isRight
    ? (Object.freeze({ id, name, issuer, clientId, clientSecretEnv, trustEmail }) as UpstreamProvider)
    : undefined;
}

const issuerMayBe = `a URL of up to ${issuerCharactersMax} characters that begins with https://, or with http:// on loopback, on port 443 (80 for http) or 1024 and up, without credentials, query and fragment`;

/** OpenID Connect Core section 2: https, no query, no fragment. */
function isIssuer(value: unknown): boolean {
  const url = typeof value === 'string' && value.length <= issuerCharactersMax ? URL.parse(value) : null;
  if (url === null || /[?#]/.test(value as string) || url.username !== '' || url.password !== '')
    return false;
  // Lower ports are those of other protocols: nothing is fetched from them (egress/fetch.ts).
  if (url.port !== '' && Number(url.port) < 1_024) return false;
  return url.protocol === 'https:' || (url.protocol === 'http:' && isLoopbackHost(url.hostname));
}

function isText(value: unknown, form: RegExp): boolean {
  return typeof value === 'string' && form.test(value);
}

function reportTwice(
  providers: readonly UpstreamProvider[],
  keyOf: (provider: UpstreamProvider) => string,
  member: string,
  report: Report,
): void {
  const keys = providers.map(keyOf);
  for (const key of new Set(keys.filter((each, index) => keys.indexOf(each) !== index))) {
    report('accounts.upstream', `two providers have the ${member} ${JSON.stringify(key)}`);
  }
}

/** Client secrets by the id of the provider. */
export type UpstreamSecrets = ReadonlyMap<string, string>;

/**
 * Reads the client secrets from the environment.
 * @throws ConfigError with a line for each variable that is not set
 */
export function readUpstreamSecrets(providers: readonly UpstreamProvider[]): UpstreamSecrets {
  const secrets = new Map<string, string>();
  const problems: string[] = [];
  for (const { id, clientSecretEnv } of providers) {
    const secret = readVariable(clientSecretEnv);
    if (secret !== undefined) secrets.set(id, secret);
    else
      problems.push(
        `${clientSecretEnv} is not set: it must be the client secret of the provider "${id}" (accounts.upstream)`,
      );
  }
  if (problems.length > 0) throw new ConfigError(problems);
  return secrets;
}
