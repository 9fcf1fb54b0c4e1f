/** Shown when sign-in fails: the reason and a retry. */

import { CircleAlert } from 'lucide-react';
import { Button } from '../ui/button.tsx';
import { Empty } from '../ui/states.tsx';
import { signIn } from './sign_in.ts';

export function SignInFailed({ error }: { error: unknown }) {
  return (
    <main className="sign-in">
      <div className="card">
        <Empty
          icon={CircleAlert}
          title="Sign-in failed"
          action={
            isSecureContext ? (
              <Button look="primary" onPress={() => void signIn('/console')}>
                Sign in
              </Button>
            ) : null
          }
        >
          {error instanceof Error ? error.message : String(error)}
        </Empty>
      </div>
    </main>
  );
}
