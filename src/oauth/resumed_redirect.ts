/**
 * Resumes a request that waited for the user only if its `redirect_uri` still belongs to the app. oidc-provider compares it when
 * the request arrives, up to an hour earlier. Since then the app may have lost the URI, and an administrator may have verified
 * the app without it.
 */

import { errors, Provider } from 'oidc-provider';

/** The part of oidc-provider's `Interaction` model that is used here. */
interface ProviderInteraction {
  params?: { client_id?: unknown; redirect_uri?: unknown };
}

/** Makes oidc-provider compare the `redirect_uri` again when it resumes a request. */
export function useResumedRedirects(provider: Provider): void {
  // oidc-provider's type omits the parameters of `find` and the stored members.
  const model = provider.Interaction as unknown as {
    find: (uid: string, ...rest: unknown[]) => Promise<ProviderInteraction | undefined>;
  };
  const { find } = model;

  model.find = async function (uid, ...rest) {
    const interaction = await find.call(this, uid, ...rest);
    if (Provider.ctx?.oidc.route !== 'resume') return interaction;
    const { client_id: id, redirect_uri: uri } = interaction?.params ?? {};
    // A client that is gone is rejected later.
    const client = typeof id === 'string' ? await provider.Client.find(id) : undefined;
    if (client !== undefined && typeof uri === 'string' && !client.redirectUriAllowed(uri)) {
      throw new errors.InvalidRedirectUri();
    }
    return interaction;
  };
}
