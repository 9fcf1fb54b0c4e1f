/** A rejected event as the form has it, and what the form sends. */

import type { RejectedEventWithBody } from '../../api/generated.ts';

export interface CorrectionDraft {
  kind: string;
  account: string;
  /** JSON. */
  body: string;
}

export function draftOf({ kind, account, body_json: body }: RejectedEventWithBody): CorrectionDraft {
  return { kind, account, body: indented(body) };
}

/** Numbers that JavaScript cannot hold, and bodies that are nested too deeply for it, stay as they came. */
function indented(body: string): string {
  try {
    return inexactNumber(body) === null ? JSON.stringify(JSON.parse(body), null, 2) : body;
  } catch {
    return body;
  }
}

/** Only what was changed: a body that nobody touched is retried as it is kept. */
export function correctionOf(
  first: CorrectionDraft,
  draft: CorrectionDraft,
): { kind?: string; account?: string; body?: unknown } {
  return {
    ...(draft.kind === first.kind ? {} : { kind: draft.kind.trim() }),
    ...(draft.account === first.account ? {} : { account: draft.account.trim() }),
    ...(draft.body === first.body ? {} : { body: JSON.parse(draft.body) }),
  };
}

/** @returns why the text cannot be sent as a body, or null */
export function bodyError(text: string): string | null {
  try {
    const number = inexactNumber(text);
    return number === null
      ? null
      : `The number ${number} would not be sent exactly. Publish a corrected event from your application instead.`;
  } catch (error) {
    return `This is not JSON: ${(error as Error).message}`;
  }
}

/** @throws SyntaxError @returns the first integer that JavaScript rounds, as it is written */
function inexactNumber(text: string): string | null {
  let found: string | null = null;
  // Older browsers give the reviver no source: there the value itself tells.
  JSON.parse(text, (_key, value: unknown, context?: { source?: string }) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
    const source = context?.source ?? String(value);
    if (found === null && /^-?\d+$/.test(source)) found = source;
    return value;
  });
  return found;
}
