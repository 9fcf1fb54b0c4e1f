/**
 * Login sessions as the engine saves them, where what it does by itself is not what should come of it.
 */

import type { Provider } from 'oidc-provider';

interface EngineSession {
  exp?: number;
  loginTs?: number;
  authTime: () => number | undefined;
  oldId?: string;
  save: (ttlSeconds: number) => Promise<string>;
  persist: () => Promise<string>;
}

export function useSessions({ Session }: Provider): void {
  // The engine's types do not list what is wrapped here.
  const prototype = Session.prototype as unknown as EngineSession;
  const { save, persist } = prototype;

  // Zero where the application did not say when it signed the user in: no id_token claims a time then, and any
  // `max_age` asks for a new sign-in.
  prototype.authTime = function () {
    return this.loginTs || undefined;
  };

  // A refused form of a browser without a session makes the engine persist one that was never saved, and fail on it.
  // There is nothing in it that anybody could come back to.
  prototype.persist = async function () {
    return typeof this.exp === 'number' ? persist.call(this) : '';
  };

  // The engine would delete the row of the id before: the storage puts the new id in its place (storage/session.ts),
  // so that a session is only ever deleted by signing out.
  prototype.save = function (ttlSeconds) {
    delete this.oldId;
    return save.call(this, ttlSeconds);
  };
}
