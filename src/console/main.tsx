/** The console: signs the user in, and then shows the page that the address names. */

import { QueryClientProvider } from '@tanstack/react-query';
import { RouterProvider } from '@tanstack/react-router';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { queryClient } from './api/query_client.ts';
import { createConsoleRouter } from './router.tsx';
import { beginSession } from './session/session.ts';
import { SessionEnded } from './session/session_ended.tsx';
import { SignInFailed } from './session/sign_in_failed.tsx';
import { applyTheme, readTheme } from './ui/theme.ts';
import { Toasts } from './ui/toasts.tsx';

applyTheme(readTheme());

const root = createRoot(document.getElementById('console') as HTMLElement);

async function start(): Promise<void> {
  try {
    const path = await beginSession();
    if (path === null) return;
    // The answer of the authorization endpoint is used up: it has no place in the history.
    history.replaceState(null, '', path);
  } catch (error) {
    root.render(<SignInFailed error={error} />);
    return;
  }
  root.render(
    <StrictMode>
      <QueryClientProvider client={queryClient}>
        <RouterProvider router={createConsoleRouter()} />
        <SessionEnded />
        <Toasts />
      </QueryClientProvider>
    </StrictMode>,
  );
}

await start();
