/** An administrator's action with a confirmation. */

import { useQueryClient } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { Button } from '../../ui/button.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { TextField } from '../../ui/fields.tsx';
import { tell } from '../../ui/toasts.tsx';

interface ActionProps {
  title: string;
  /** The object of the action, for screen readers. */
  of: string;
  question: string;
  children: ReactNode;
  done: string;
  isDanger?: boolean;
  /** Whether to ask for a reason for the audit log. */
  hasReason?: boolean;
  onConfirm: (reason: string) => Promise<unknown>;
}

export function Action({
  title,
  of,
  question,
  children,
  done,
  isDanger = false,
  hasReason = false,
  onConfirm,
}: ActionProps) {
  const [isOpen, setOpen] = useState(false);
  const [reason, setReason] = useState('');
  const cache = useQueryClient();
  return (
    <>
      <Button
        isSmall
        look={isDanger ? 'danger' : 'secondary'}
        aria-label={`${title} ${of}`}
        onPress={() => setOpen(true)}
      >
        {title}
      </Button>
      <ConfirmDialog
        title={question}
        action={title}
        look={isDanger ? 'danger-solid' : 'primary'}
        isOpen={isOpen}
        onClose={() => setOpen(false)}
        onConfirm={async () => {
          await onConfirm(reason.trim());
          await cache.invalidateQueries({ queryKey: ['admin'] });
          tell(done);
        }}
      >
        <p>{children}</p>
        {hasReason && (
          <TextField
            label="Reason"
            value={reason}
            onChange={setReason}
            description="Recorded in the audit log."
          />
        )}
      </ConfirmDialog>
    </>
  );
}
