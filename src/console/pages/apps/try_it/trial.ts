/** The progress of a test of an app. Kept in memory only. */

import type { App } from '../../../api/generated.ts';

/** An authorization request with the values that check its response. */
export interface Pending {
  url: string;
  state: string;
  verifier: string;
  redirectUri: string;
}

/** A request as sent, and its response. */
export interface Exchange {
  request: string;
  response: string;
  isGood: boolean;
}

export interface Trial {
  /** For a user, or for the app itself. */
  mode: 'user' | 'app';
  redirectUri: string;
  scopes: readonly string[];
  pending: Pending | null;
  /** The pasted redirect URL or code. */
  answer: string;
  secret: string;
  token: Exchange | null;
  accessToken: string | null;
  path: string;
  call: Exchange | null;
}

export function emptyTrial(app: App): Trial {
  return {
    mode: app.grant_types.includes('authorization_code') ? 'user' : 'app',
    redirectUri: app.redirect_uris[0] ?? '',
    scopes: app.scope.split(' ').filter(Boolean),
    pending: null,
    answer: '',
    secret: '',
    token: null,
    accessToken: null,
    path: '/api',
    call: null,
  };
}

/** @returns why the page cannot test the app, or null */
export function whyNotTried(app: App): string | null {
  const { grant_types: grants, token_endpoint_auth_method: method } = app;
  if (!grants.includes('authorization_code') && !grants.includes('client_credentials')) {
    return 'It uses only the device code grant. Use the sample code under Overview.';
  }
  if (!['none', 'client_secret_basic', 'client_secret_post'].includes(method)) {
    return `It authenticates with ${method}. Its private key must not be entered on this page.`;
  }
  if (app.dpop_bound_access_tokens === true) return 'Its tokens are bound to its own key (DPoP).';
  if (app.require_pushed_authorization_requests === true) {
    return 'It must push its authorization requests (PAR).';
  }
  if (app.require_signed_request_object === true) return 'It must sign its authorization requests.';
  return null;
}
