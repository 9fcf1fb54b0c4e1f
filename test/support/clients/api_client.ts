/** Requests to the API for tests: one user with one token, and parsed responses. */

import type { Account } from '../../../src/accounts/account.ts';
import type { ReachableServer, TestServer } from '../servers/server.ts';
import { createTestAccount, createTestClient, mintAccessToken } from './oauth.ts';

export interface ApiResponse {
  status: number;
  headers: Headers;
  /** Parsed JSON; undefined without a body. */
  // biome-ignore lint/suspicious/noExplicitAny: tests inspect any response
  body: any;
  text: string;
}

export interface ApiRequest {
  headers?: Record<string, string>;
  /** Sent as JSON. */
  json?: unknown;
  /** Sent unchanged. */
  raw?: string | Uint8Array<ArrayBuffer>;
}

export interface ApiUser {
  account: Pick<Account, 'id'>;
  accessToken: string;
  grantId: string | null;
  request: (method: string, path: string, options?: ApiRequest) => Promise<ApiResponse>;
}

/** Creates a user and a token for that user from a new client. */
export async function createApiUser(
  server: ReachableServer,
  scopes: readonly string[] = ['read:posts', 'write:posts'],
  account?: Pick<Account, 'id'>,
): Promise<ApiUser> {
  const user = account ?? (await createTestAccount(server));
  const client = await createTestClient(server, { scopes: [...scopes] });
  const { accessToken, grantId } = await mintAccessToken(server, { account: user, client, scopes });
  return { account: user, accessToken, grantId, request: requester(server, accessToken) };
}

/** Sends no `Authorization` header without a token. */
export function requester(server: Pick<TestServer, 'baseUrl'>, accessToken?: string) {
  return async (method: string, path: string, options: ApiRequest = {}): Promise<ApiResponse> => {
    const headers: Record<string, string> = {
      ...(accessToken === undefined ? {} : { authorization: `Bearer ${accessToken}` }),
      ...(options.json === undefined ? {} : { 'content-type': 'application/json' }),
      ...options.headers,
    };
    const body = options.json === undefined ? options.raw : JSON.stringify(options.json);
    const response = await fetch(server.baseUrl + path, {
      method,
      headers,
      redirect: 'manual',
      ...(body === undefined ? {} : { body }),
    });
    const text = await response.text();
    return {
      status: response.status,
      headers: response.headers,
      body: text === '' ? undefined : JSON.parse(text),
      text,
    };
  };
}
