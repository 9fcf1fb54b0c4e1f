/** A form of a draft: checked here, sent, and what the server refuses is said beside its fields. */

import { type FormEvent, type ReactNode, useState } from 'react';
import { ApiError, describeFailure } from '../api/problem.ts';
import { Button } from './button.tsx';
import { Notice } from './states.tsx';

export type Faults<Draft> = Partial<Record<keyof Draft, string>>;

/** What a part of the form is given. */
export interface DraftPart<Draft> {
  draft: Draft;
  faults: Faults<Draft>;
  onChange: (part: Partial<Draft>) => void;
}

interface DraftFormProps<Draft> {
  first: Draft;
  action: string;
  /** What the page itself finds wrong. */
  faultsOf: (draft: Draft) => Faults<Draft>;
  /** Members of the request body, each with the field that shows what is wrong with it. */
  members: readonly (readonly [member: string, field: keyof Draft])[];
  /** Makes a sentence of what the server says of a member. */
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
    // What was said of the old value is not about the new one.
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

/** After the faults are shown: whoever cannot see the page is led to the first. */
function focusFirstFault(form: Element): void {
  requestAnimationFrame(() =>
    form.querySelector<HTMLElement>('[aria-invalid="true"], [role="alert"]')?.focus(),
  );
}
