/** A rejected event as a form draft and as a request body. */

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

/** Formats a body. Leaves it unchanged if JavaScript cannot represent its numbers or its nesting. */
function indented(body: string): string {
  try {
    return inexactNumber(body) === null ? JSON.stringify(JSON.parse(body), null, 2) : body;
  } catch {
    return body;
  }
}

/** Only the changed members. The server retries an omitted body exactly as it is stored. */
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

/** @returns the first integer that JavaScript rounds, as written in the text. @throws SyntaxError */
function inexactNumber(text: string): string | null {
  let found: string | null = null;
  // Older browsers do not pass the source text to the reviver. Use the parsed value instead.
  JSON.parse(text, (_key, value: unknown, context?: { source?: string }) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
    const source = context?.source ?? String(value);
    if (found === null && /^-?\d+$/.test(source)) found = source;
    return value;
  });
  return found;
}
