/**
 * `maxLength` and `minLength` of JSON Schema (section 6.3 of its validation) count characters, not UTF-16 units. Counting
 * them one by one took a seventh of the time of publishing; of most strings the number of units says enough: there are
 * never more characters than units, and never fewer than half as many.
 */

import { _, type Ajv, type KeywordCxt, str } from 'ajv';

/** Replaces both keywords of a validator; what they mean and what they say of a fault stays. */
export function countSeldom(ajv: Ajv): void {
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
    // The second half of a pair is counted with the first.
    if ((text.codePointAt(at) as number) > 0xffff) at += 1;
    count += 1;
  }
  return count;
}
