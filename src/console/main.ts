/**
 * The first script of the console. Whoever is not signed in on this page goes to the authorization endpoint at once;
 * whoever comes back from there gets the application.
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
