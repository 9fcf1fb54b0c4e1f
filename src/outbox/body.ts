/**
 * Parses stored bodies. A body that `append` wrote round-trips. A row that another language inserted can have integers that
 * JavaScript cannot represent exactly, or numbers that are too large.
 */

/** Matches texts with a long number or a large exponent. Only these need the check. */
const longNumberPattern = /[:[,]\s*-?[0-9][0-9.]*(?:[0-9]{15}|[eE]\+?[0-9]{2})|^\s*-?[0-9]{15}/;

/** @throws Error when the text is not JSON, or has an inexact integer or a number that is too large */
export function readBody(text: string): unknown {
  return longNumberPattern.test(text) ? JSON.parse(text, reviveNumber) : JSON.parse(text);
}

function reviveNumber(_name: string, value: unknown, { source = '' }: { source?: string } = {}): unknown {
  if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
  if (!Number.isFinite(value) || (/^-?[0-9]+$/.test(source) && String(value) !== source)) {
    throw new Error(
      `body has the number ${source.slice(0, 40)}, which JavaScript cannot represent: write it as a string`,
    );
  }
  return value;
}
