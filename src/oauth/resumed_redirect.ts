/**
 * Resumes a request that waited for the user only if its `redirect_uri` still belongs to the app. oidc-provider compares it when
 * the request arrives, up to an hour earlier. Since then the app may have lost the URI, and an administrator may have verified
 * the app without it.
 */

import { type AdapterPayload, errors, type KoaContextWithOIDC } from 'oidc-provider';

/** @throws InvalidRedirectUri if the app of a request that is resumed has lost the URI */
export async function refuseLostRedirect(
  { oidc }: KoaContextWithOIDC,
  { params }: AdapterPayload,
): Promise<void> {
  if (oidc.route !== 'resume') return;
  const { client_id: id, redirect_uri: uri } = params ?? {};
  // A client that is gone is rejected later.
  const client = typeof id === 'string' ? await oidc.provider.Client.find(id) : undefined;
  if (client !== undefined && typeof uri === 'string' && !client.redirectUriAllowed(uri)) {
    throw new errors.InvalidRedirectUri();
  }
}
