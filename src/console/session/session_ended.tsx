/** Shown over the page when the session has ended. Input stays, so that the user can copy it. */

import { useSyncExternalStore } from 'react';
import { Button } from '../ui/button.tsx';
import { Dialog } from '../ui/dialog.tsx';
import { onSessionChange, sessionState } from './session.ts';
import { signIn } from './sign_in.ts';

export function SessionEnded() {
  const state = useSyncExternalStore(onSessionChange, sessionState);
  return (
    <Dialog
      title="You are signed out"
      isOpen={state === 'ended'}
      onClose={() => undefined}
      isDismissable={false}
    >
      <p>Your session has ended. Sign in to continue where you left off.</p>
      <div className="form-actions">
        <Button look="primary" onPress={() => void signIn(location.pathname + location.search)}>
          Sign in again
        </Button>
      </div>
    </Dialog>
  );
}
