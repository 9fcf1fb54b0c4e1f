/**
 * Overrides of oidc-provider's session model.
 */

import type { Provider } from 'oidc-provider';

interface ProviderSession {
  exp?: number;
  loginTs?: number;
  authTime: () => number | undefined;
  oldId?: string;
  save: (ttlSeconds: number) => Promise<string>;
  persist: () => Promise<string>;
}

export function useSessions({ Session }: Provider): void {
  // oidc-provider's types omit these members.
  const prototype = Session.prototype as unknown as ProviderSession;
  const { save, persist } = prototype;

  // `loginTs` is zero if the application gave no time for the sign-in. Then no id_token contains `auth_time`, and every
  // `max_age` requires a new sign-in.
  prototype.authTime = function () {
    return this.loginTs || undefined;
  };

  // A rejected form of a browser without a session makes oidc-provider persist a session that was never saved, which throws.
  // Such a session has no content to store.
  prototype.persist = async function () {
    return typeof this.exp === 'number' ? persist.call(this) : '';
  };

  // oidc-provider would delete the row of the previous id. The storage replaces the id in place instead
  // (storage/session.ts), so that a session is deleted only by signing out.
  prototype.save = function (ttlSeconds) {
    delete this.oldId;
    return save.call(this, ttlSeconds);
  };
}
