/** The user of the agent: somebody at a browser, or the same steps without one. */

import { randomBytes } from 'node:crypto';
import { type Login, Visitor } from '../reader/browserless.ts';

export interface User {
  readonly login: Login;
  /** Signs in and consents at this URL. The server then sends the user to the redirect URI. */
  authorize(url: URL, redirectUri: string): Promise<void>;
  /** Disconnects the agent at `/account`. */
  disconnect(): Promise<void>;
}

function createLogin(): Login {
  return {
    email: `agent-${randomBytes(4).toString('hex')}@example.com`,
    password: randomBytes(12).toString('hex'),
  };
}

/** @returns a user who fills in the pages as somebody without JavaScript would */
export function scriptedUser(baseUrl: string): User {
  const login = createLogin();
  const visitor = new Visitor(login);
  return {
    login,
    async authorize(url, redirectUri) {
      await fetch(await visitor.logInAndConfirm(url, redirectUri));
    },
    disconnect: () => visitor.submit(new URL('/account', baseUrl), '/account/withdraw'),
  };
}

/** @returns a user who is told what to do in a browser */
export function browserUser(baseUrl: string): User {
  const login = createLogin();
  const { email, password } = login;
  return {
    login,
    async authorize({ href }) {
      tell(
        `Open this page, sign in as ${email} with the password ${password}, and allow the agent:\n  ${href}`,
      );
    },
    async disconnect() {
      tell(`Disconnect the agent at ${baseUrl}/account. It waits for that.`);
    },
  };
}

function tell(text: string): void {
  process.stdout.write(`\n→ ${text}\n\n`);
}
