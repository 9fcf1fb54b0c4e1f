/** Shows a client secret, once. */

import { Button } from '../../ui/button.tsx';
import { Secret } from '../../ui/copy.tsx';
import { Dialog } from '../../ui/dialog.tsx';
import { Notice } from '../../ui/states.tsx';

export function SecretDialog({ secret, onClose }: { secret: string | null; onClose: () => void }) {
  return (
    <Dialog
      title="Keep the client secret now"
      isOpen={secret !== null}
      onClose={onClose}
      isDismissable={false}
    >
      <Notice look="warn">
        <p>
          It is shown this once: the server keeps only a digest of it. Put it where your app keeps its
          secrets.
        </p>
      </Notice>
      <Secret value={secret ?? ''} label="the client secret" />
      <div className="form-actions">
        <Button look="primary" onPress={onClose}>
          I have kept it
        </Button>
      </div>
    </Dialog>
  );
}
