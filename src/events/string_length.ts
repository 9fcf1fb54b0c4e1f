/**
 * `maxLength` and `minLength` of JSON Schema (validation, section 6.3) count characters, not UTF-16 code units. Counting
 * characters took a seventh of the time of publishing. The number of code units usually decides: a string has at most as many
 * characters as code units, and at least half as many.
 */

import { _, type Ajv, type KeywordCxt, str } from 'ajv';

/** Replaces both keywords of a validator. Their meaning and error messages stay the same. */
export function replaceLengthKeywords(ajv: Ajv): void {
  ajv.removeKeyword('maxLength').removeKeyword('minLength');
  ajv.addKeyword({
    keyword: ['maxLength', 'minLength'],
    type: 'string',
    schemaType: 'number',
    error: {
      message: ({ keyword, schemaCode }) =>
        str`must NOT have ${keyword === 'maxLength' ? 'more' : 'fewer'} than ${schemaCode} characters`,
      params: ({ schemaCode }) => _`{limit: ${schemaCode}}`,
    },
    code(context: KeywordCxt) {
      const { gen, keyword, data, schemaCode: limit } = context;
      const count = gen.scopeValue('func', { ref: countCharacters });
      context.fail(
        keyword === 'maxLength'
          ? _`${data}.length > ${limit} && ${count}(${data}) > ${limit}`
          : _`${data}.length < 2 * ${limit} && ${count}(${data}) < ${limit}`,
      );
    },
  });
}

function countCharacters(text: string): number {
  let count = 0;
  for (let at = 0; at < text.length; at += 1) {
    // A surrogate pair is one character.
    if ((text.codePointAt(at) as number) > 0xffff) at += 1;
    count += 1;
  }
  return count;
}
