/**
 * HTML templates: the tag `html` escapes every value that it did not create itself.
 */

declare const made: unique symbol;

/** HTML that only the tag can create, so it is safe to send. */
export interface Html {
  readonly [made]: true;
  toString(): string;
}

type Insertable = string | number | Html | null | undefined | false | readonly Insertable[];

class HtmlText {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  toString(): string {
    return this.#text;
  }
}

/** Escapes every value. Omits `null`, `undefined` and `false`; joins arrays. */
export function html(strings: TemplateStringsArray, ...values: Insertable[]): Html {
  let text = strings[0] ?? '';
  for (const [index, value] of values.entries()) text += insert(value) + (strings[index + 1] ?? '');
  // `Html` is branded: only this function makes it, so nothing else is inserted without escaping.
  return new HtmlText(text) as unknown as Html;
}

function insert(value: Insertable): string {
  if (value === null || value === undefined || value === false) return '';
  if (value instanceof HtmlText) return value.toString();
  if (Array.isArray(value)) return value.map(insert).join('');
  return String(value).replaceAll(/[&<>"']/g, (character) => entities[character] as string);
}

const entities: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};
