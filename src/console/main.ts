/**
 * The first script of the console. It sends a signed-out browser to the authorization endpoint at once and loads the
 * application for a browser that comes back.
 */

import { callbackPath, issuer, signIn } from './session/sign_in.ts';
import { applyTheme, readTheme } from './ui/theme.ts';

applyTheme(readTheme());

if (new URL(issuer).origin !== location.origin) {
  location.replace(`${issuer}${location.pathname}${location.search}`);
} else if (location.pathname === callbackPath || !isSecureContext) {
  const { showConsole } = await import('./application.tsx');
  await showConsole();
} else {
  await signIn(location.pathname + location.search + location.hash);
}
