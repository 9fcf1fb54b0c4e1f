/** The console: finishes the sign-in, then shows the requested page. */

import { QueryClientProvider } from '@tanstack/react-query';
import { RouterProvider } from '@tanstack/react-router';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { queryClient } from './api/query_client.ts';
import { createConsoleRouter } from './router.tsx';
import { finishSignIn } from './session/session.ts';
import { SessionEnded } from './session/session_ended.tsx';
import { SignInFailed } from './session/sign_in_failed.tsx';
import { Toasts } from './ui/toasts.tsx';

export async function showConsole(): Promise<void> {
  const root = createRoot(document.getElementById('console') as HTMLElement);
  try {
    // Keep the used authorization response out of the history.
    history.replaceState(null, '', await finishSignIn());
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
