/** `nuncio client create`: registers an app, as the operator. */

import {
  type AuthMethod,
  authMethods,
  createClient,
  deviceCodeGrantType,
  type NewClient,
} from '../clients/client.ts';
import { credentialsError, fapi2Metadata, metadataError, sectorError } from '../clients/metadata.ts';
import { isOwnRedirectUri } from '../clients/own_clients.ts';
import { createScopeCatalogue, openidScopes } from '../grants/scopes.ts';
import { loadPlatform } from '../platform.ts';
import { type Command, type OptionValues, textOption, textOptions, UsageError } from './command.ts';
import { withDatabase } from './storage.ts';

const grantTypes = [
  ...['authorization_code', 'refresh_token', 'client_credentials', deviceCodeGrantType],
  ...['implicit', 'password'],
];

export const clientCreate: Command = {
  options: {
    name: { type: 'string' },
    id: { type: 'string' },
    'redirect-uri': { type: 'string', multiple: true },
    grant: { type: 'string', multiple: true },
    scope: { type: 'string', multiple: true },
    'auth-method': { type: 'string' },
    'no-pkce': { type: 'boolean' },
    fapi2: { type: 'boolean' },
    metadata: { type: 'string' },
    json: { type: 'boolean' },
  },
  help: [
    ['--name N', 'what users are told it is called'],
    ['--id I', 'its client_id; made by default'],
    ['--redirect-uri U', 'where users are sent back to; may be repeated'],
    [
      '--grant G',
      `a grant_type it may use, may be repeated; by default authorization_code and refresh_token`,
    ],
    ['--scope S', 'a scope it may ask for, may be repeated; by default all that users can allow'],
    [
      '--auth-method M',
      `how it authenticates (RFC 7591); by default client_secret_basic, none for a public app`,
    ],
    ['--no-pkce', 'let it do without PKCE; for confidential apps, and only where the server allows that'],
    ['--fapi2', 'hold it to FAPI 2.0: pushed requests, and tokens bound to its key (DPoP) or certificate'],
    ['--metadata JSON', 'more of RFC 7591 and the like: jwks, jwks_uri, post_logout_redirect_uris …'],
    ['--json', 'print JSON'],
  ],
  async run({ values }, { config, print }) {
    const catalogue = createScopeCatalogue((await loadPlatform(config.configFile)).objects);
    const known = [...catalogue.values(), ...openidScopes];
    const wanted = readClient(values, known);
    const own = wanted.redirectUris?.find((uri) => isOwnRedirectUri(uri, config.baseUrl));
    if (own !== undefined)
      throw new UsageError(`--redirect-uri is "${own}": that is where the server's own app is`);
    const { client, secret } = await withDatabase(config, (db) => createClient(db, wanted));
    if (values.json === true) {
      print(JSON.stringify({ client_id: client.id, ...(secret === null ? {} : { client_secret: secret }) }));
      return;
    }
    print(`client_id      ${client.id}`);
    if (secret !== null) print(`client_secret  ${secret}   (not shown again)`);
  },
};

function readClient(values: OptionValues, known: { name: string; isForUsers: boolean }[]): NewClient {
  const id = textOption(values, 'id');
  const redirectUris = textOptions(values, 'redirect-uri');
  const grants = textOptions(values, 'grant');
  const scopes = textOptions(values, 'scope').flatMap((entry) => entry.split(/[\s,]+/).filter(Boolean));
  const authMethod = textOption(values, 'auth-method') ?? 'client_secret_basic';
  if (!isAuthMethod(authMethod)) {
    throw new UsageError(`--auth-method is "${authMethod}": it may be ${authMethods.join(', ')}`);
  }
  const wanted = grants.length > 0 ? grants : ['authorization_code', 'refresh_token'];
  const unknownGrant = wanted.find((grant) => !grantTypes.includes(grant));
  if (unknownGrant !== undefined) {
    throw new UsageError(`--grant is "${unknownGrant}": it may be ${grantTypes.join(', ')}`);
  }
  const unknownScope = scopes.find((scope) => !known.some(({ name }) => name === scope));
  if (unknownScope !== undefined) {
    const names = known.map(({ name }) => name);
    throw new UsageError(`--scope is "${unknownScope}": it may be ${names.join(', ')}`);
  }
  if (wanted.includes('authorization_code') && redirectUris.length === 0) {
    throw new UsageError('--redirect-uri is required with the grant authorization_code');
  }
  return {
    ...(id === undefined ? {} : { id }),
    name: textOption(values, 'name', true),
    redirectUris,
    grantTypes: wanted,
    scopes: scopes.length > 0 ? scopes : known.filter(({ isForUsers }) => isForUsers).map(({ name }) => name),
    authMethod,
    requirePkce: values['no-pkce'] !== true,
    metadata: checkedMetadata(values, authMethod, wanted, redirectUris),
  };
}

function checkedMetadata(
  values: OptionValues,
  authMethod: AuthMethod,
  grantTypes: readonly string[],
  redirectUris: readonly string[],
): Record<string, unknown> {
  const metadata = readMetadata(values, authMethod, grantTypes);
  const fault = credentialsError(metadata, authMethod);
  if (fault !== undefined) throw new UsageError(`--auth-method: ${fault} (in --metadata)`);
  const sector = sectorError(metadata, redirectUris);
  if (sector !== undefined) throw new UsageError(`--metadata: ${sector}`);
  return metadata;
}

function readMetadata(
  values: OptionValues,
  authMethod: AuthMethod,
  grantTypes: readonly string[],
): Record<string, unknown> {
  const text = textOption(values, 'metadata') ?? '{}';
  let metadata: unknown;
  try {
    metadata = JSON.parse(text);
  } catch {
    throw new UsageError('--metadata is not JSON');
  }
  if (typeof metadata !== 'object' || metadata === null || Array.isArray(metadata)) {
    throw new UsageError('--metadata must be a JSON object');
  }
  const given = metadata as Record<string, unknown>;
  const error = metadataError(given);
  if (error !== undefined) throw new UsageError(`--metadata: ${error}`);
  if (values.fapi2 !== true) return given;
  const preset = fapi2Metadata(given, authMethod, grantTypes);
  if ('error' in preset) throw new UsageError(`--fapi2: ${preset.error}`);
  if (values['no-pkce'] === true) throw new UsageError('--fapi2 and --no-pkce do not go together');
  return preset.metadata;
}

function isAuthMethod(text: string): text is AuthMethod {
  return (authMethods as readonly string[]).includes(text);
}
