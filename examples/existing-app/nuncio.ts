/** The shop's client of the Nuncio server. It uses the shop's own token, never a user's. */

import * as oidc from 'openid-client';
import type { User } from './users.ts';

export interface LoginRequest {
  /** Null if the user opens their account page at the Nuncio server. */
  client: { client_name: string } | null;
  prompt: string | null;
  max_age: number | null;
}

export interface Grant {
  id: string;
  client_name: string;
  scope_descriptions: Record<string, string>;
  created_at: string;
}

export type Nuncio = Awaited<ReturnType<typeof connectNuncio>>;

export async function connectNuncio(url: string, clientId: string, clientSecret: string) {
  const configuration = await oidc.discovery(
    new URL(url),
    clientId,
    clientSecret,
    oidc.ClientSecretBasic(clientSecret),
    // Only while everything runs on one machine.
    { execute: [oidc.allowInsecureRequests] },
  );
  let token = { value: '', expiresAt: 0 };

  async function accessToken(): Promise<string> {
    if (Date.now() > token.expiresAt) {
      const granted = await oidc.clientCredentialsGrant(configuration);
      token = {
        value: granted.access_token,
        expiresAt: Date.now() + ((granted.expires_in ?? 60) - 30) * 1_000,
      };
    }
    return token.value;
  }

  // biome-ignore lint/suspicious/noExplicitAny: any response of the server
  async function call(method: string, path: string, body?: unknown): Promise<any> {
    const response = await fetch(url + path, {
      method,
      headers: {
        authorization: `Bearer ${await accessToken()}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new NuncioError(response.status, text);
    return text === '' ? undefined : JSON.parse(text);
  }

  return {
    readLogin: (id: string): Promise<LoginRequest> =>
      call('GET', `/login-requests/${encodeURIComponent(id)}`),

    /** @returns the URL to redirect the browser to */
    async acceptLogin(id: string, user: User): Promise<string> {
      const answer = await call('POST', `/login-requests/${encodeURIComponent(id)}/accept`, {
        account: { external_id: user.id, email: user.email, name: user.name },
        auth_time: user.signedInAt,
        amr: ['pwd'],
      });
      return answer.redirect_to;
    },

    async rejectLogin(id: string): Promise<string> {
      const answer = await call('POST', `/login-requests/${encodeURIComponent(id)}/reject`, {
        error: 'access_denied',
        error_description: 'The user cancelled',
      });
      return answer.redirect_to;
    },

    async connectedApps(userId: string): Promise<Grant[]> {
      const query = new URLSearchParams({ external_id: userId });
      const { items } = await call('GET', `/accounts?${query}`);
      return items.length === 0 ? [] : (await call('GET', `/accounts/${items[0].id}/grants?limit=200`)).items;
    },

    withdraw: (grantId: string): Promise<void> => call('DELETE', `/grants/${encodeURIComponent(grantId)}`),
  };
}

export class NuncioError extends Error {
  readonly status: number;

  constructor(status: number, text: string) {
    super(`Nuncio responded with ${status}: ${text}`);
    this.status = status;
  }
}
