/** Reading bodies back. What `append` wrote reads as it was; rows of other languages may have numbers that JavaScript changes. */

/** What could be a number that changes when it is read. */
const longNumber = /[:[,]\s*-?[0-9][0-9.]*(?:[0-9]{15}|[eE]\+?[0-9]{2})|^\s*-?[0-9]{15}/;

/** @throws Error for a text that is not JSON, or that has an integer which JavaScript cannot keep */
export function readBody(text: string): unknown {
  return longNumber.test(text) ? JSON.parse(text, mustKeep) : JSON.parse(text);
}

function mustKeep(_name: string, value: unknown, { source = '' }: { source?: string } = {}): unknown {
  if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
  if (!Number.isFinite(value) || (/^-?[0-9]+$/.test(source) && String(value) !== source)) {
    throw new Error(
      `body has the number ${source.slice(0, 40)}, which JavaScript cannot keep: write it as a text`,
    );
  }
  return value;
}
