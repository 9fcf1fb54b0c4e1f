/** A form: validates the draft, sends it, and shows the server's errors beside the fields. */

import { type FormEvent, type ReactNode, useEffect, useRef, useState } from 'react';
import { ApiError, describeFailure } from '../api/problem.ts';
import { Button } from './button.tsx';
import { Notice } from './states.tsx';

export type FieldErrors<Draft> = Partial<Record<keyof Draft, string>>;

/** The props of a part of the form. */
export interface DraftPart<Draft> {
  draft: Draft;
  errors: FieldErrors<Draft>;
  onChange: (part: Partial<Draft>) => void;
}

interface DraftFormProps<Draft> {
  first: Draft;
  action: string;
  /** Errors that the page finds. */
  errorsOf: (draft: Draft) => FieldErrors<Draft>;
  /** Maps members of the request body to the fields that show their errors. */
  members: readonly (readonly [member: string, field: keyof Draft])[];
  /** Turns the server's message about a member into a sentence. */
  sayError: (message: string) => string;
  /** @throws ApiError */
  onSubmit: (draft: Draft) => Promise<void>;
  onCancel?: (() => void) | undefined;
  /** @param refused the server's messages by JSON pointer, until their member changes */
  children: (part: DraftPart<Draft>, refused: ReadonlyMap<string, string>) => ReactNode;
}

export function DraftForm<Draft extends object>({
  first,
  action,
  errorsOf,
  members,
  sayError,
  onSubmit,
  onCancel,
  children,
}: DraftFormProps<Draft>) {
  const [draft, setDraft] = useState(first);
  const [errors, setErrors] = useState<FieldErrors<Draft>>({});
  const [refused, setRefused] = useState<ReadonlyMap<string, string>>(new Map());
  const [failure, setFailure] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const [rejections, setRejections] = useState(0);
  const form = useRef<HTMLFormElement>(null);
  // An effect, because the errors are on the page then, however busy the browser is.
  useEffect(() => {
    if (rejections > 0 && form.current !== null) focusFirstError(form.current);
  }, [rejections]);
  const change = (part: Partial<Draft>) => {
    setDraft({ ...draft, ...part });
    // The error was about the old value.
    const kept = Object.entries(errors).filter(([name]) => !(name in part));
    setErrors(Object.fromEntries(kept) as FieldErrors<Draft>);
    const changed = members.filter(([, field]) => field in part).map(([member]) => member);
    setRefused(new Map([...refused].filter(([pointer]) => !changed.includes(pointer.split('/')[1] ?? ''))));
  };
  const send = async () => {
    setPending(true);
    try {
      await onSubmit(draft);
    } catch (error) {
      const found = error instanceof ApiError ? rejectedFields(error, members, sayError) : {};
      setErrors(found);
      if (error instanceof ApiError) setRefused(error.errors);
      if (Object.keys(found).length === 0) setFailure(describeFailure(error));
      else setRejections((count) => count + 1);
    } finally {
      setPending(false);
    }
  };
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const found = errorsOf(draft);
    setErrors(found);
    setRefused(new Map());
    setFailure(null);
    if (Object.keys(found).length > 0) setRejections((count) => count + 1);
    else await send();
  };
  return (
    <form ref={form} className="stack-large" onSubmit={submit} noValidate>
      {children({ draft, errors, onChange: change }, refused)}
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

function rejectedFields<Draft>(
  error: ApiError,
  members: DraftFormProps<Draft>['members'],
  sayError: (message: string) => string,
): FieldErrors<Draft> {
  const errors: FieldErrors<Draft> = {};
  for (const [member, field] of members) {
    const message = error.errorAt(member);
    if (message !== undefined) errors[field] = sayError(message);
  }
  return errors;
}

/** Moves the focus to the first error, for screen readers. */
function focusFirstError(form: Element): void {
  requestAnimationFrame(() =>
    (
      form.querySelector<HTMLElement>('[aria-invalid="true"]') ??
      form.querySelector<HTMLElement>('[role="alert"]')
    )?.focus(),
  );
}
