/** Dialogs, and the confirmation before an action that cannot be undone. */

import { type ReactNode, useState } from 'react';
import { Dialog as AriaDialog, Heading, Modal, ModalOverlay } from 'react-aria-components';
import { describeFailure } from '../api/problem.ts';
import { Button } from './button.tsx';
import { TextField } from './fields.tsx';

interface DialogProps {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  /** Whether a click outside closes it. False where a secret is shown only once. */
  isDismissable?: boolean;
  isWide?: boolean;
  isAlert?: boolean;
  children: ReactNode;
}

export function Dialog({
  title,
  isOpen,
  onClose,
  isDismissable = true,
  isWide = false,
  isAlert = false,
  children,
}: DialogProps) {
  return (
    <ModalOverlay
      className="overlay"
      isOpen={isOpen}
      isDismissable={isDismissable}
      isKeyboardDismissDisabled={!isDismissable}
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
    >
      <Modal className={isWide ? 'dialog dialog-wide' : 'dialog'}>
        <AriaDialog className="dialog-content" role={isAlert ? 'alertdialog' : 'dialog'}>
          <Heading slot="title" level={2}>
            {title}
          </Heading>
          {children}
        </AriaDialog>
      </Modal>
    </ModalOverlay>
  );
}

interface ConfirmProps {
  title: string;
  /** Describes what will happen. */
  children: ReactNode;
  action: string;
  isOpen: boolean;
  onClose: () => void;
  onConfirm: () => Promise<unknown>;
  look?: 'danger-solid' | 'primary';
  /** Text that the user must type to confirm, such as the name of the app. */
  typed?: string;
}

export function ConfirmDialog({
  title,
  children,
  action,
  isOpen,
  onClose,
  onConfirm,
  look = 'danger-solid',
  typed,
}: ConfirmProps) {
  const [text, setText] = useState('');
  const [isPending, setPending] = useState(false);
  const [failure, setFailure] = useState<string | null>(null);
  const confirm = async () => {
    setPending(true);
    setFailure(null);
    try {
      await onConfirm();
      onClose();
    } catch (error) {
      setFailure(describeFailure(error));
    } finally {
      setPending(false);
    }
  };
  return (
    <Dialog title={title} isOpen={isOpen} onClose={onClose} isAlert>
      <div className="stack-small">{children}</div>
      {typed !== undefined && (
        <TextField label={`Type “${typed}” to confirm`} value={text} onChange={setText} autoComplete="off" />
      )}
      {failure !== null && (
        <p role="alert" className="field-error">
          {failure}
        </p>
      )}
      <div className="form-actions">
        <Button onPress={onClose}>Cancel</Button>
        <Button
          look={look}
          isPending={isPending}
          isDisabled={typed !== undefined && text.trim() !== typed}
          onPress={confirm}
        >
          {action}
        </Button>
      </div>
    </Dialog>
  );
}
