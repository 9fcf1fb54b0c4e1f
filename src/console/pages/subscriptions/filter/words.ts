/** A filter in plain English. */

import { type ConditionDraft, listOf, readValue, type Scalar, textProblem } from './draft.ts';
import { wordsOf } from './operators.ts';

/** Values of a list that are shown; the rest is counted. */
const valuesMax = 8;
const charactersMax = 80;

export interface ConditionWords {
  path: string;
  words: string;
  /** Empty for an operator without a value. */
  value: string;
}

/** What is missing is shown as dots. */
export function describeCondition(condition: ConditionDraft): ConditionWords {
  const { path, operator } = condition;
  return {
    path: path.trim(),
    words: wordsOf(operator, condition),
    value: describeOperand(condition),
  };
}

function describeOperand(condition: ConditionDraft): string {
  const { operator, type, text } = condition;
  if (['empty', 'null', 'exists', 'absent'].includes(operator)) return '';
  const isWrong = text !== '' && textProblem(type, text) !== undefined;
  if (operator !== 'in') return text === '' || isWrong ? '…' : describeValue(readValue(type, text));
  return describeList(isWrong ? [...condition.list] : listOf(condition));
}

function describeList(values: readonly Scalar[]): string {
  if (values.length === 0) return '…';
  const shown = values.slice(0, valuesMax).map(describeValue);
  const rest = values.length - shown.length;
  if (rest > 0) return `${shown.join(', ')} or ${rest} more`;
  return shown.length === 1 ? (shown[0] as string) : `${shown.slice(0, -1).join(', ')} or ${shown.at(-1)}`;
}

export function describeValue(value: Scalar): string {
  if (typeof value !== 'string') return String(value);
  return value.length > charactersMax ? `“${value.slice(0, charactersMax)}…”` : `“${value}”`;
}
