/** An app as it stands in a form, and as the API takes it. */

import type { App, AppCreate } from '../../api/generated.ts';

export interface AppDraft {
  name: string;
  homePage: string;
  logo: string;
  redirectUris: readonly string[];
  grantTypes: readonly string[];
  authMethod: string;
  scopes: readonly string[];
}

export const emptyAppDraft: AppDraft = {
  name: '',
  homePage: '',
  logo: '',
  redirectUris: [''],
  grantTypes: ['authorization_code', 'refresh_token'],
  authMethod: 'client_secret_basic',
  scopes: [],
};

export function appDraftOf(app: App): AppDraft {
  return {
    name: app.client_name,
    homePage: app.client_uri ?? '',
    logo: app.logo_uri ?? '',
    redirectUris: app.redirect_uris.length === 0 ? [''] : app.redirect_uris,
    grantTypes: app.grant_types,
    authMethod: app.token_endpoint_auth_method,
    scopes: app.scope.split(' ').filter(Boolean),
  };
}

export function toAppBody(draft: AppDraft): AppCreate {
  const orNull = (text: string) => (text.trim() === '' ? null : text.trim());
  return {
    client_name: draft.name.trim(),
    client_uri: orNull(draft.homePage),
    logo_uri: orNull(draft.logo),
    redirect_uris: draft.redirectUris.map((uri) => uri.trim()).filter((uri) => uri !== ''),
    grant_types: [...draft.grantTypes] as NonNullable<AppCreate['grant_types']>,
    token_endpoint_auth_method: draft.authMethod as AppCreate['token_endpoint_auth_method'],
    scope: draft.scopes.join(' '),
  };
}
