/** The cache of what the server has answered. */

import { QueryClient } from '@tanstack/react-query';
import { ApiError } from './problem.ts';

/** Milliseconds for which an answer is as good as a new one. */
const freshMs = 5_000;

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: freshMs,
      // A request without a connection fails, and the page says so, instead of waiting for the connection.
      networkMode: 'always',
      refetchOnReconnect: true,
      // What the server has refused it will refuse again; what did not arrive may the next time.
      retry: (count, error) => count < 2 && (!(error instanceof ApiError) || error.status >= 500),
    },
  },
});
