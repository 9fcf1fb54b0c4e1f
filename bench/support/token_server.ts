/**
 * The servers that bench/token.ts measures, each in a separate process: Nuncio, or the bare engine with an in-memory
 * store and the same tokens (ES256 JWTs, 256-bit refresh tokens, rotation).
 */

// Must precede every module that imports the engine.
import '../../src/oauth/runtime_warning.ts';

import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, generateKeyPair } from 'jose';
import { type Adapter, type AdapterPayload, Provider } from 'oidc-provider';
import { pino } from 'pino';
import { openLogDestination } from '../../src/commands/log_destination.ts';
import { loadConfig } from '../../src/config/config.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';

const options = JSON.parse(process.env.BENCH ?? '{}') as Record<string, string>;
/** Number of entries of each kind that the bare engine keeps in memory. */
const entriesMax = 20_000;
const port = await freePort();
const baseUrl = `http://localhost:${port}`;
if (process.argv[2] === 'nuncio') await startNuncio();
else await startBare();
// The measuring process failed.
process.once('disconnect', () => process.exit(1));
process.send?.(baseUrl);

async function startNuncio(): Promise<void> {
  const config = loadConfig({ PORT: String(port), HOST: '127.0.0.1', NUNCIO_RATE_LIMIT: '0' }, 'dev');
  const running = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: options.databaseUrl ?? '',
    secret: randomBytes(32),
    logger: pino({ level: config.logLevel, base: null }, openLogDestination('/dev/null')),
  });
  process.once('SIGTERM', () => void running.close().then(() => process.exit(0)));
}

async function startBare(): Promise<void> {
  const { privateKey } = await generateKeyPair('ES256', { extractable: true });
  const rsa = await generateKeyPair('RS256', { extractable: true });
  const resource = {
    scope: options.scope ?? '',
    audience: baseUrl,
    accessTokenTTL: 900,
    accessTokenFormat: 'jwt' as const,
    jwt: { sign: { alg: 'ES256' as const } },
  };
  const provider = new Provider(baseUrl, {
    adapter: (model: string) => memoryStore(model),
    jwks: {
      keys: [
        { ...(await exportJWK(privateKey)), alg: 'ES256', use: 'sig' },
        { ...(await exportJWK(rsa.privateKey)), alg: 'RS256', use: 'sig' },
      ] as never, // jose and oidc-provider declare different types for a JWK
    },
    clients: [
      {
        client_id: 'bench',
        client_secret: 'secret',
        redirect_uris: [options.redirectUri ?? ''],
        grant_types: ['authorization_code', 'refresh_token', 'client_credentials'],
      },
    ],
    routes: { token: '/oauth/token' },
    scopes: ['openid', 'offline_access'],
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => baseUrl,
        useGrantedResource: () => true,
        getResourceServerInfo: () => resource,
      },
    },
    findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    issueRefreshToken: async () => true,
    expiresWithSession: async () => false,
    rotateRefreshToken: () => true,
    ttl: {
      AccessToken: 900,
      AuthorizationCode: 600,
      Grant: 86_400,
      RefreshToken: 86_400,
      ClientCredentials: 900,
    },
  });
  createServer(provider.callback()).listen(port, '127.0.0.1');
  process.on('message', async ({ count }: { count: number }) => {
    const client = await provider.Client.find('bench');
    const codes: string[] = [];
    for (let index = 0; index < count; index += 1) {
      const grant = new provider.Grant({ accountId: 'user', clientId: 'bench' });
      grant.addResourceScope(baseUrl, options.scope ?? '');
      const code = new provider.AuthorizationCode({
        accountId: 'user',
        client,
        codeChallenge: options.challenge,
        codeChallengeMethod: 'S256',
        grantId: await grant.save(),
        redirectUri: options.redirectUri,
        resource: baseUrl,
        scope: options.scope,
        sessionUid: 'bench',
      } as never); // oidc-provider's type omits members that its own endpoints set
      codes.push(await code.save());
    }
    process.send?.(codes);
  });
  process.once('SIGTERM', () => process.exit(0));
}

/** Replaces the engine's own memory store, which keeps only about a thousand entries: too few for codes made in advance. */
function memoryStore(model: string): Adapter {
  const entries = new Map<string, AdapterPayload>();
  const unused = async () => {
    throw new Error(`${model} is not looked for by this`);
  };
  return {
    async upsert(id, payload) {
      entries.set(id, payload);
      if (entries.size > entriesMax) entries.delete(entries.keys().next().value as string);
    },
    find: async (id) => entries.get(id),
    async consume(id) {
      const entry = entries.get(id);
      if (entry !== undefined) entry.consumed = Math.floor(Date.now() / 1_000);
    },
    async destroy(id) {
      entries.delete(id);
    },
    revokeByGrantId: unused,
    findByUid: unused,
    findByUserCode: unused,
  };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port: free } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return free;
}
