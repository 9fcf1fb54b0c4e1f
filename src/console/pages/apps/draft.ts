/** An app as a form draft and as a request body. */

import type { App, AppMergePatch } from '../../api/generated.ts';
import { presets } from './words.ts';

export interface AppDraft {
  name: string;
  clientUri: string;
  policyUri: string;
  tosUri: string;
  redirectUris: readonly string[];
  applicationType: string;
  grants: readonly string[];
  scopes: readonly string[];
  authMethod: string;
  /** URL of the public keys, for `private_key_jwt`. */
  jwksUri: string;
}

export const emptyDraft: AppDraft = {
  name: '',
  clientUri: '',
  policyUri: '',
  tosUri: '',
  redirectUris: [''],
  scopes: [],
  jwksUri: '',
  ...(presets[0] as (typeof presets)[number]).draft,
};

export function draftOf(app: App): AppDraft {
  return {
    name: app.client_name,
    clientUri: app.client_uri ?? '',
    policyUri: app.policy_uri ?? '',
    tosUri: app.tos_uri ?? '',
    redirectUris: app.redirect_uris.length === 0 ? [''] : app.redirect_uris,
    applicationType: app.application_type ?? 'web',
    grants: app.grant_types,
    scopes: app.scope.split(' ').filter(Boolean),
    authMethod: app.token_endpoint_auth_method,
    jwksUri: app.jwks_uri ?? '',
  };
}

/** Text of the app; null if empty. */
export function toBody(draft: AppDraft) {
  const usesCode = draft.grants.includes('authorization_code');
  const uris = draft.redirectUris.map((uri) => uri.trim()).filter(Boolean);
  return {
    client_name: draft.name.trim(),
    client_uri: orNull(draft.clientUri),
    policy_uri: orNull(draft.policyUri),
    tos_uri: orNull(draft.tosUri),
    redirect_uris: usesCode ? uris : [],
    application_type: draft.applicationType as 'web' | 'native',
    grant_types: [...draft.grants] as NonNullable<AppMergePatch['grant_types']>,
    scope: draft.scopes.join(' '),
    token_endpoint_auth_method: draft.authMethod as NonNullable<AppMergePatch['token_endpoint_auth_method']>,
    ...(draft.authMethod === 'private_key_jwt' ? { jwks_uri: orNull(draft.jwksUri) } : {}),
  };
}

/** Only changed members: others would cost the app its verification. */
export function toPatch(before: AppDraft, after: AppDraft): AppMergePatch {
  const old: Record<string, unknown> = toBody(before);
  const changed = Object.entries(toBody(after)).filter(
    ([name, value]) => JSON.stringify(value) !== JSON.stringify(old[name]),
  );
  return Object.fromEntries(changed) as AppMergePatch;
}

function orNull(text: string): string | null {
  return text.trim() === '' ? null : text.trim();
}

/** Whether saving the patch removes the verification: every setting of the form was verified. */
export function endsVerification(patch: AppMergePatch): boolean {
  return Object.keys(patch).length > 0;
}
