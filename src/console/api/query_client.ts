/** The cache of responses. */

import { QueryClient } from '@tanstack/react-query';
import { ApiError } from './problem.ts';

/** Milliseconds that a response counts as fresh. */
const freshMs = 5_000;

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: freshMs,
      // Without a connection a request fails at once, so that the page can show the error.
      networkMode: 'always',
      refetchOnReconnect: true,
      // Retry only requests that got no response.
      retry: (count, error) => count < 2 && (!(error instanceof ApiError) || error.status >= 500),
    },
  },
});
