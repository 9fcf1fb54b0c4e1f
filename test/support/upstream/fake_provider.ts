/** A fake OpenID provider. Tests control its metadata, ID tokens, UserInfo and responses. */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type CryptoKey, exportJWK, generateKeyPair, type JWTPayload, SignJWT } from 'jose';

interface Scope {
  after: (close: () => Promise<void>) => unknown;
}

/** A request to the token endpoint. */
export interface TokenRequest {
  form: URLSearchParams;
  authorization: string | undefined;
}

export interface FakeProvider {
  issuer: string;
  clientId: string;
  clientSecret: string;
  /** Number of requests by path. */
  requests: Map<string, number>;
  lastTokenRequest: TokenRequest | undefined;
  /** Overrides members of the metadata. A member with the value undefined is omitted. */
  metadata: Record<string, unknown>;
  /** Handlers that replace the response of a path. */
  overrides: Map<string, (request: IncomingMessage, response: ServerResponse) => void>;
  /** Returns the ID token for the next code. */
  idToken: () => Promise<string>;
  userInfo: Record<string, unknown> | undefined;
  /** Signs a valid ID token with the given claims and header. */
  sign: (claims: JWTPayload, header?: { alg?: string; kid?: string }, key?: CryptoKey) => Promise<string>;
}

export async function startFakeProvider(scope: Scope, clientId = 'nuncio'): Promise<FakeProvider> {
  const keys = await generateKeyPair('RS256');
  const jwk = { ...(await exportJWK(keys.publicKey)), kid: 'one', alg: 'RS256', use: 'sig' };
  const server = createServer((request, response) => {
    void respond(request, response);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  scope.after(async () => {
    server.closeAllConnections();
    server.close();
  });
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

  const provider: FakeProvider = {
    issuer,
    clientId,
    clientSecret: 'a secret: with odd+characters/%',
    requests: new Map(),
    lastTokenRequest: undefined,
    metadata: {},
    overrides: new Map(),
    idToken: () => provider.sign({}),
    userInfo: undefined,
    sign(claims, header = {}, key = keys.privateKey) {
      const now = Math.floor(Date.now() / 1_000);
      return new SignJWT({ iss: issuer, aud: clientId, sub: 'user', iat: now, exp: now + 300, ...claims })
        .setProtectedHeader({ alg: 'RS256', kid: 'one', ...header })
        .sign(key);
    },
  };

  async function respond(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = new URL(request.url ?? '/', issuer).pathname;
    provider.requests.set(path, (provider.requests.get(path) ?? 0) + 1);
    const override = provider.overrides.get(path);
    if (override !== undefined) return override(request, response);
    const send = (status: number, body: unknown) => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    };
    if (path === '/.well-known/openid-configuration') {
      return send(200, {
        issuer,
        authorization_endpoint: `${issuer}/authorize`,
        token_endpoint: `${issuer}/token`,
        jwks_uri: `${issuer}/jwks`,
        ...(provider.userInfo === undefined ? {} : { userinfo_endpoint: `${issuer}/userinfo` }),
        response_types_supported: ['code'],
        id_token_signing_alg_values_supported: ['RS256'],
        authorization_response_iss_parameter_supported: true,
        ...provider.metadata,
      });
    }
    if (path === '/jwks') return send(200, { keys: [jwk] });
    if (path === '/userinfo') return send(200, provider.userInfo);
    if (path !== '/token') return send(404, {});
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    provider.lastTokenRequest = {
      form: new URLSearchParams(Buffer.concat(chunks).toString()),
      authorization: request.headers.authorization,
    };
    return send(200, { access_token: 'at', token_type: 'Bearer', id_token: await provider.idToken() });
  }

  return provider;
}
