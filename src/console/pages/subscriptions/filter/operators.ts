/** The operators of conditions: which of them fit a value, and what they are called. */

import type { BodyPath, BodyType } from './body_paths.ts';
import { type ConditionDraft, type Operator, readValue, type ValueType } from './draft.ts';

const valueTypes: readonly ValueType[] = ['string', 'number', 'boolean', 'null'];
const every: readonly BodyType[] = valueTypes;

interface OperatorEntry {
  /** The types of values that it fits. */
  types: readonly BodyType[] | null;
  words: string;
  /** With `not`. */
  negated: string;
  /** The words for texts, where they are others. */
  text?: readonly [words: string, negated: string];
}

const entries: Readonly<Record<Operator, OperatorEntry>> = {
  eq: { types: ['string', 'number', 'boolean'], words: 'is', negated: 'is not' },
  in: { types: ['string', 'number'], words: 'is one of', negated: 'is none of' },
  prefix: { types: ['string'], words: 'begins with', negated: 'does not begin with' },
  gt: {
    types: ['string', 'number'],
    words: 'is more than',
    negated: 'is not more than',
    text: ['is after', 'is not after'],
  },
  gte: {
    types: ['string', 'number'],
    words: 'is at least',
    negated: 'is not at least',
    text: ['is at or after', 'is not at or after'],
  },
  lt: {
    types: ['string', 'number'],
    words: 'is less than',
    negated: 'is not less than',
    text: ['is before', 'is not before'],
  },
  lte: {
    types: ['string', 'number'],
    words: 'is at most',
    negated: 'is not at most',
    text: ['is at or before', 'is not at or before'],
  },
  empty: { types: ['string'], words: 'is empty text', negated: 'is not empty text' },
  null: { types: ['null'], words: 'is null', negated: 'is not null' },
  exists: { types: null, words: 'exists', negated: 'does not exist' },
  absent: { types: null, words: 'does not exist', negated: 'exists' },
};

export const comparisons: readonly Operator[] = ['gt', 'gte', 'lt', 'lte'];

/** Words between a path and a value. */
export function wordsOf(operator: Operator, { isNot, type }: Pick<ConditionDraft, 'isNot' | 'type'>): string {
  const { words, negated, text } = entries[operator];
  const [plain, not] = type === 'string' && text !== undefined ? text : [words, negated];
  return isNot ? not : plain;
}

/** @param body undefined for a path that the schemas do not list: any type is possible */
export function operatorsFor(body: BodyPath | undefined): Operator[] {
  const types = body?.types ?? every;
  return (Object.keys(entries) as Operator[]).filter((operator) => {
    const fits = entries[operator].types;
    return fits === null || fits.some((type) => types.includes(type));
  });
}

/** The types that a value can be entered in, for an operator. */
export function typesFor(operator: Operator, body: BodyPath | undefined): ValueType[] {
  const types = body?.types ?? every;
  const fits = entries[operator].types ?? [];
  return valueTypes.filter((type) => type !== 'null' && types.includes(type) && fits.includes(type));
}

/** Changes the operator and the type of a condition where its path or operator no longer allows them. */
export function fitted(condition: ConditionDraft, body: BodyPath | undefined): ConditionDraft {
  const offered = operatorsFor(body);
  const operator = offered.includes(condition.operator) ? condition.operator : (offered[0] as Operator);
  const types = typesFor(operator, body);
  const type = types.includes(condition.type) ? condition.type : (types[0] ?? condition.type);
  const text = type === condition.type ? condition.text : '';
  const list = body === undefined ? condition.list : condition.list.filter((value) => fits(value, body));
  return { ...condition, operator, list, ...typed(type, text) };
}

const fits = (value: unknown, { types }: BodyPath) =>
  types.includes(value === null ? 'null' : (typeof value as BodyType));

/** A boolean always has a value. */
export function typed(type: ValueType, text: string): Pick<ConditionDraft, 'type' | 'text'> {
  return { type, text: type === 'boolean' ? String(readValue('boolean', text || 'true')) : text };
}
