/** One condition of a filter: the path, `not`, the operator and the value. */

import { X } from 'lucide-react';
import { ToggleButton } from 'react-aria-components';
import { Badge } from '../../../ui/badge.tsx';
import { Button } from '../../../ui/button.tsx';
import { SelectField } from '../../../ui/fields.tsx';
import { SuggestField } from '../../../ui/suggest_field.tsx';
import { type BodyPath, pathCharactersMax } from './body_paths.ts';
import type { ConditionDraft, ConditionProblem, Operator } from './draft.ts';
import { fitted, operatorsFor, typed, typesFor, wordsOf } from './operators.ts';
import { ValueField } from './value_field.tsx';

export interface ConditionFieldsProps {
  /** From 1. */
  number: number;
  condition: ConditionDraft;
  paths: readonly BodyPath[];
  problem: ConditionProblem | undefined;
  /** Whether the tried event meets it; undefined if that is not known. */
  isMet: boolean | undefined;
  isFocused: boolean;
  onChange: (condition: ConditionDraft) => void;
  onRemove: () => void;
}

export function ConditionFields({
  number,
  condition,
  paths,
  problem,
  isMet,
  isFocused,
  onChange,
  onRemove,
}: ConditionFieldsProps) {
  const { path, isNot, operator } = condition;
  const body = paths.find((each) => each.path === path.trim());
  const offered = operatorsFor(body);
  const operators = offered.includes(operator) ? offered : [...offered, operator];
  const setPath = (next: string) => {
    const changed = { ...condition, path: next };
    const found = paths.find((each) => each.path === next.trim());
    // While the user types, the path is not known yet.
    onChange(found === undefined ? changed : fitted(changed, found));
  };
  const setOperator = (next: Operator) => {
    const types = typesFor(next, body);
    const type = types.includes(condition.type) ? condition.type : (types[0] ?? condition.type);
    onChange({ ...condition, operator: next, ...typed(type, type === condition.type ? condition.text : '') });
  };
  const hasValue = !['empty', 'null', 'exists', 'absent'].includes(operator);
  return (
    <fieldset className="condition">
      <legend className="visually-hidden">Condition {number}</legend>
      <div className="condition-path">
        <SuggestField
          label="Path"
          value={path}
          onChange={setPath}
          suggestions={paths.map((each) => ({ text: each.path, note: noteOf(each) }))}
          placeholder="Choose or enter a path"
          error={problem?.path}
          maxLength={pathCharactersMax}
          autoFocus={isFocused}
        />
        <Button look="ghost" isIcon aria-label={`Remove condition ${number}`} onPress={onRemove}>
          <X size={16} aria-hidden />
        </Button>
      </div>
      {path.trim() !== '' && (
        <div className="condition-operation">
          <ToggleButton
            className="button button-secondary toggle"
            isSelected={isNot}
            onChange={(next) => onChange({ ...condition, isNot: next })}
          >
            Not
          </ToggleButton>
          <SelectField
            label="Operator"
            isLabelHidden
            value={operator}
            onChange={(next) => setOperator(next as Operator)}
            choices={operators.map((id) => ({ id, title: wordsOf(id, condition) }))}
          />
          {hasValue && (
            <ValueField condition={condition} body={body} onChange={onChange} error={problem?.value} />
          )}
        </div>
      )}
      {!hasValue && problem?.value !== undefined && (
        <p className="field-error" role="alert">
          {problem.value}
        </p>
      )}
      {isMet !== undefined && (
        <p>
          <Badge look={isMet ? 'good' : 'still'}>
            {isMet ? 'met by the example' : 'not met by the example'}
          </Badge>
        </p>
      )}
    </fieldset>
  );
}

function noteOf({ types }: BodyPath): string {
  if (types.length === 0) return 'differs';
  return types.length > 3
    ? 'any type'
    : types.map((type) => (type === 'string' ? 'text' : type)).join(' or ');
}
