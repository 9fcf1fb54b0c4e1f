/** A filter as a form draft and as a member of a request body. */

import type { Subscription } from '../../../api/generated.ts';

export type Filter = NonNullable<Subscription['filter']>;
type Negatable = NonNullable<Filter['all']>[number];
type Condition = Exclude<Negatable, { not: unknown }>;

export type Scalar = string | number | boolean | null;
export type ValueType = 'string' | 'number' | 'boolean' | 'null';

/** What a user chooses: the operators of the API, and `eq` and `exists` with their special values. */
export type Operator =
  | 'eq'
  | 'empty'
  | 'null'
  | 'in'
  | 'prefix'
  | 'gt'
  | 'gte'
  | 'lt'
  | 'lte'
  | 'exists'
  | 'absent';

export interface ConditionDraft {
  /** Stays the same while the user edits. */
  id: number;
  path: string;
  isNot: boolean;
  operator: Operator;
  /** Of `text`. */
  type: ValueType;
  /** The value as it was typed; of a list, the value that is not added yet. */
  text: string;
  list: readonly Scalar[];
}

export interface FilterDraft {
  mode: 'all' | 'any';
  /** None: no filter. */
  conditions: readonly ConditionDraft[];
}

export const conditionsMax = 10;
export const choicesMax = 100;
export const textCharactersMax = 1_000;

export const noFilter: FilterDraft = { mode: 'all', conditions: [] };

export function newCondition(conditions: readonly ConditionDraft[]): ConditionDraft {
  const id = Math.max(0, ...conditions.map((each) => each.id)) + 1;
  return { id, path: '', isNot: false, operator: 'eq', type: 'string', text: '', list: [] };
}

export function filterDraftOf(filter: Filter | null): FilterDraft {
  if (filter === null) return noFilter;
  const [mode, list] = filter.all === undefined ? ['any' as const, filter.any] : ['all' as const, filter.all];
  return { mode, conditions: (list ?? []).map((each, index) => conditionDraftOf(each, index + 1)) };
}

function conditionDraftOf(each: Negatable, id: number): ConditionDraft {
  const isNot = 'not' in each;
  const { path, ...operation }: Condition = isNot ? each.not : each;
  const [name, operand] = Object.entries(operation)[0] as [Operator, Scalar | Scalar[]];
  const draft: ConditionDraft = { id, path, isNot, operator: name, type: 'string', text: '', list: [] };
  if (Array.isArray(operand)) {
    const type = operand.map(typeOf).find((found) => found !== 'null') ?? 'string';
    return { ...draft, list: operand, type };
  }
  if (name === 'exists') return { ...draft, operator: operand === true ? 'exists' : 'absent' };
  if (operand === null) return { ...draft, operator: 'null' };
  if (name === 'eq' && operand === '') return { ...draft, operator: 'empty' };
  return { ...draft, type: typeOf(operand), text: String(operand) };
}

export function typeOf(value: Scalar): ValueType {
  return value === null ? 'null' : (typeof value as ValueType);
}

/** @param draft without problems @returns null without conditions */
export function toFilter({ mode, conditions }: FilterDraft): Filter | null {
  if (conditions.length === 0) return null;
  const list = conditions.map((each): Negatable => {
    const condition: Condition = { path: each.path.trim(), ...operationOf(each) };
    return each.isNot ? { not: condition } : condition;
  });
  return mode === 'all' ? { all: list } : { any: list };
}

function operationOf(condition: ConditionDraft): Omit<Condition, 'path'> {
  const { operator, type, text } = condition;
  switch (operator) {
    case 'empty':
      return { eq: '' };
    case 'null':
      return { eq: null };
    case 'exists':
      return { exists: true };
    case 'absent':
      return { exists: false };
    case 'in':
      return { in: listOf(condition) };
    default:
      return { [operator]: readValue(type, text) };
  }
}

/** The values of a list, with the one that is typed but not added yet. */
export function listOf({ type, text, list }: Pick<ConditionDraft, 'type' | 'text' | 'list'>): Scalar[] {
  const isTyped = text !== '' && (type === 'string' || type === 'number');
  return [...new Set(isTyped ? [...list, readValue(type, text)] : list)];
}

/** @param text has no problem */
export function readValue(type: ValueType, text: string): Scalar {
  if (type === 'number') return Number(text);
  if (type === 'boolean') return text === 'true';
  return type === 'null' ? null : text;
}

/** Messages beside the fields of a condition. */
export interface ConditionProblem {
  path?: string;
  value?: string;
}

/** What the page finds wrong in a condition; undefined if it is complete. */
export function problemOf(condition: ConditionDraft): ConditionProblem | undefined {
  const path = condition.path.trim();
  if (path === '') return { path: 'Choose a value of the body.' };
  if (!path.startsWith('/')) return { path: 'Begin the path with a slash, such as /ref.' };
  const value = valueProblem(condition);
  return value === undefined ? undefined : { value };
}

function valueProblem(condition: ConditionDraft): string | undefined {
  const { operator, type, text, list } = condition;
  if (['empty', 'null', 'exists', 'absent'].includes(operator)) return undefined;
  if (operator === 'in') {
    if (list.length === 0 && text === '') return 'Add at least one value.';
    if (listOf(condition).length > choicesMax)
      return `Remove some values: at most ${choicesMax} are allowed.`;
    return text === '' ? undefined : textProblem(type, text);
  }
  return text === '' ? 'Enter a value.' : textProblem(type, text);
}

/** Digits that a number of JavaScript keeps. */
const exactDigits = 15;

/** Why a text is no value of the type. */
export function textProblem(type: ValueType, text: string): string | undefined {
  if (type !== 'number') return undefined;
  if (!/^\s*-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\s*$/.test(text) || !Number.isFinite(Number(text))) {
    return 'Enter a number, such as 100 or 2.5.';
  }
  const [mantissa = ''] = text.trim().split(/e/i);
  const digits = mantissa.replaceAll(/[-.]/g, '').replace(/^0+/, '').replace(/0+$/, '');
  return digits.length > exactDigits && !Number.isSafeInteger(Number(text))
    ? `Enter a number with at most ${exactDigits} digits.`
    : undefined;
}

/** The conditions that the server refuses, by their index in the draft. */
export function refusedConditions(errors: ReadonlyMap<string, string>): Map<number, ConditionProblem> {
  const problems = new Map<number, ConditionProblem>();
  for (const [pointer, message] of errors) {
    const [, index, rest = ''] = /^\/filter\/(?:all|any)\/(\d+)(?:\/not)?(\/.*)?$/.exec(pointer) ?? [];
    if (index === undefined) continue;
    const found = problems.get(Number(index)) ?? {};
    const place = rest === '/path' ? 'path' : 'value';
    found[place] ??= `${/^\/in\/\d+$/.test(rest) ? `Value ${Number(rest.slice(4)) + 1}` : 'It'} ${message}.`;
    problems.set(Number(index), found);
  }
  return problems;
}
