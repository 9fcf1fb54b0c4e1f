/** A form: validates the draft, sends it, and shows the server's errors beside the fields. */

import { type FormEvent, type ReactNode, useState } from 'react';
import { ApiError, describeFailure } from '../api/problem.ts';
import { Button } from './button.tsx';
import { Notice } from './states.tsx';

export type Faults<Draft> = Partial<Record<keyof Draft, string>>;

/** The props of a part of the form. */
export interface DraftPart<Draft> {
  draft: Draft;
  faults: Faults<Draft>;
  onChange: (part: Partial<Draft>) => void;
}

interface DraftFormProps<Draft> {
  first: Draft;
  action: string;
  /** Errors that the page finds. */
  faultsOf: (draft: Draft) => Faults<Draft>;
  /** Maps members of the request body to the fields that show their errors. */
  members: readonly (readonly [member: string, field: keyof Draft])[];
  /** Turns the server's message about a member into a sentence. */
  sayRefusal: (message: string) => string;
  /** @throws ApiError */
  onSubmit: (draft: Draft) => Promise<void>;
  onCancel?: (() => void) | undefined;
  children: (part: DraftPart<Draft>) => ReactNode;
}

export function DraftForm<Draft extends object>({
  first,
  action,
  faultsOf,
  members,
  sayRefusal,
  onSubmit,
  onCancel,
  children,
}: DraftFormProps<Draft>) {
  const [draft, setDraft] = useState(first);
  const [faults, setFaults] = useState<Faults<Draft>>({});
  const [failure, setFailure] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const change = (part: Partial<Draft>) => {
    setDraft({ ...draft, ...part });
    // The error was about the old value.
    const kept = Object.entries(faults).filter(([name]) => !(name in part));
    setFaults(Object.fromEntries(kept) as Faults<Draft>);
  };
  const send = async (form: Element) => {
    setPending(true);
    try {
      await onSubmit(draft);
    } catch (error) {
      const refused = error instanceof ApiError ? refusedFaults(error, members, sayRefusal) : {};
      setFaults(refused);
      if (Object.keys(refused).length === 0) setFailure(describeFailure(error));
      else focusFirstFault(form);
    } finally {
      setPending(false);
    }
  };
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const found = faultsOf(draft);
    setFaults(found);
    setFailure(null);
    if (Object.keys(found).length > 0) focusFirstFault(event.currentTarget);
    else await send(event.currentTarget);
  };
  return (
    <form className="stack-large" onSubmit={submit} noValidate>
      {children({ draft, faults, onChange: change })}
      {failure !== null && (
        <Notice look="bad" title="Your changes were not saved" role="alert">
          <p>{failure}</p>
        </Notice>
      )}
      <div className="form-actions">
        {onCancel !== undefined && <Button onPress={onCancel}>Cancel</Button>}
        <Button look="primary" type="submit" isPending={isPending}>
          {action}
        </Button>
      </div>
    </form>
  );
}

function refusedFaults<Draft>(
  error: ApiError,
  members: DraftFormProps<Draft>['members'],
  sayRefusal: (message: string) => string,
): Faults<Draft> {
  const faults: Faults<Draft> = {};
  for (const [member, field] of members) {
    const message = error.faultAt(member);
    if (message !== undefined) faults[field] = sayRefusal(message);
  }
  return faults;
}

/** Moves the focus to the first error, for screen readers. */
function focusFirstFault(form: Element): void {
  requestAnimationFrame(() =>
    form.querySelector<HTMLElement>('[aria-invalid="true"], [role="alert"]')?.focus(),
  );
}
