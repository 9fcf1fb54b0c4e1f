/**
 * Parses stored bodies. A body that `append` wrote round-trips. A row that another language inserted can have numbers that
 * JavaScript cannot represent.
 */

/** Matches every text that can have a number which JavaScript cannot represent, and some others. */
const longNumberPattern = /[:[,]\s*-?[0-9][0-9.]*(?:[0-9]{15}|[eE]\+?[0-9]{2})|^\s*-?[0-9]{15}/;

/** @throws Error when the text is not JSON, or has a number that JavaScript cannot represent */
export function readBody(text: string): unknown {
  return longNumberPattern.test(text) ? JSON.parse(text, assertExactNumber) : JSON.parse(text);
}

function assertExactNumber(
  _name: string,
  value: unknown,
  { source = '' }: { source?: string } = {},
): unknown {
  if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
  if (!Number.isFinite(value) || (/^-?[0-9]+$/.test(source) && String(value) !== source)) {
    throw new Error(
      `body has the number ${source.slice(0, 40)}, which JavaScript cannot represent: write it as a string`,
    );
  }
  return value;
}
