/** The setting `accounts.upstream` of `nuncio.config.ts`: the OpenID providers that users can sign in with. */

import { ConfigError, isLoopbackHost } from '../../config/config.ts';
import { readVariable } from '../../config/environment.ts';
import { reportUnknown } from '../../shared/nearest.ts';

/** The declaration of one provider. */
export interface UpstreamDeclaration {
  /**
   * A lower-case word of up to 32 letters, digits and hyphens. It is part of the redirect URI, so do not
   * change it while the provider is in use.
   */
  readonly id: string;
  /** The name on the button, 1 to 60 characters. */
  readonly name: string;
  /**
   * The issuer identifier of the provider, `https`, or `http` on loopback. The metadata at
   * `<issuer>/.well-known/openid-configuration` must name the same issuer. Ids and issuers must be unique.
   * The maximum is 20 providers.
   */
  readonly issuer: string;
  /** The client id at the provider. */
  readonly clientId: string;
  /**
   * The environment variable with the client secret. The name must not begin with `NUNCIO_`. The server
   * authenticates with `client_secret_basic`, or with `client_secret_post` if the provider supports only
   * that.
   */
  readonly clientSecretEnv: string;
  /**
   * Whether an address that the provider reports with `email_verified: true` identifies an account. Default:
   * `false`. Set it only if the provider verifies every address that it reports.
   */
  readonly trustEmail?: boolean;
}

export type UpstreamProvider = Required<UpstreamDeclaration>;

type Report = (place: string, reason: string) => void;

const members: Readonly<Record<keyof UpstreamDeclaration, true>> = {
  id: true,
  name: true,
  issuer: true,
  clientId: true,
  clientSecretEnv: true,
  trustEmail: true,
};
const providersMax = 20;
const nameCharactersMax = 60;
const clientIdCharactersMax = 255;
const issuerCharactersMax = 512;

/** @param report called with the place and the reason of each problem */
export function readUpstreamProviders(declared: unknown, report: Report): readonly UpstreamProvider[] {
  if (declared === undefined) return Object.freeze([]);
  const place = 'accounts.upstream';
  if (!Array.isArray(declared) || declared.length > providersMax) {
    report(place, `must be an array of up to ${providersMax} providers`);
    return Object.freeze([]);
  }
  const providers = declared.flatMap(
    (value: unknown, index) => readProvider(value, `${place}[${index}]`, report) ?? [],
  );
  reportDuplicates(providers, ({ id }) => id, 'id', report);
  reportDuplicates(providers, ({ issuer }) => URL.parse(issuer)?.href ?? issuer, 'issuer', report);
  return Object.freeze(providers);
}

function readProvider(value: unknown, place: string, report: Report): UpstreamProvider | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    report(place, 'must be { id, name, issuer, clientId, clientSecretEnv, trustEmail? }');
    return undefined;
  }
  const {
    id,
    name,
    issuer,
    clientId,
    clientSecretEnv,
    trustEmail = false,
  } = value as Record<string, unknown>;
  reportUnknown(value, members, place, report);
  const check = (isMemberValid: boolean, member: string, expected: string) => {
    if (!isMemberValid) report(`${place}.${member}`, `must be ${expected}`);
    return isMemberValid;
  };
  const isValid = [
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
    check(isIssuer(issuer), 'issuer', issuerFormat),
    check(
      isText(clientId, /^[\x20-\x7e]+$/) && (clientId as string).length <= clientIdCharactersMax,
      'clientId',
      `1 to ${clientIdCharactersMax} printable ASCII characters`,
    ),
    check(
      isText(clientSecretEnv, /^(?!NUNCIO_)[A-Z][A-Z0-9_]{0,127}$/) && clientSecretEnv !== 'DATABASE_URL',
      'clientSecretEnv',
      'the name of an environment variable that does not begin with NUNCIO_, such as GOOGLE_CLIENT_SECRET',
    ),
    check(typeof trustEmail === 'boolean', 'trustEmail', 'true or false'),
  ].every(Boolean);
  return isValid
    ? (Object.freeze({ id, name, issuer, clientId, clientSecretEnv, trustEmail }) as UpstreamProvider)
    : undefined;
}

const issuerFormat = `a URL of up to ${issuerCharactersMax} characters that begins with https://, or with http:// on loopback, with port 443 (80 for http) or a port from 1024, without credentials, query and fragment`;

/** OpenID Connect Core section 2: https, no query, no fragment. */
function isIssuer(value: unknown): boolean {
  const url = typeof value === 'string' && value.length <= issuerCharactersMax ? URL.parse(value) : null;
  if (url === null || /[?#]/.test(value as string) || url.username !== '' || url.password !== '')
    return false;
  // Requests to lower ports are refused, because other protocols use them (egress/fetch.ts).
  if (url.port !== '' && Number(url.port) < 1_024) return false;
  return url.protocol === 'https:' || (url.protocol === 'http:' && isLoopbackHost(url.hostname));
}

function isText(value: unknown, pattern: RegExp): boolean {
  return typeof value === 'string' && pattern.test(value);
}

function reportDuplicates(
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

/** Client secrets by provider id. */
export type UpstreamSecrets = ReadonlyMap<string, string>;

/**
 * Reads the client secrets from the environment.
 * @throws ConfigError with one problem for each variable that is not set
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
