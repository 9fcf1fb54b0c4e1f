/** An action of a button: runs once at a time and reports errors. */

import { useState } from 'react';
import { tell, tellFailure } from './toasts.tsx';

export interface Action {
  isPending: boolean;
  run: (work: () => Promise<unknown>, done?: string) => Promise<void>;
}

export function useAction(): Action {
  const [isPending, setPending] = useState(false);
  const run = async (work: () => Promise<unknown>, done?: string) => {
    setPending(true);
    try {
      await work();
      if (done !== undefined) tell(done);
    } catch (error) {
      tellFailure(error);
    } finally {
      setPending(false);
    }
  };
  return { isPending, run };
}
