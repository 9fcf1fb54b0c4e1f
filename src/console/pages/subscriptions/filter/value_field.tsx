/** The value of a condition, in the type that the schema allows: text, a number, a boolean, or a list of values. */

import { Plus, X } from 'lucide-react';
import type { ClipboardEvent, KeyboardEvent } from 'react';
import { Button as AriaButton, Tag, TagGroup, TagList } from 'react-aria-components';
import { Button } from '../../../ui/button.tsx';
import { SelectField } from '../../../ui/fields.tsx';
import { SuggestField } from '../../../ui/suggest_field.tsx';
import type { BodyPath } from './body_paths.ts';
import {
  type ConditionDraft,
  choicesMax,
  listOf,
  readValue,
  textCharactersMax,
  textProblem,
  typeOf,
  type ValueType,
} from './draft.ts';
import { comparisons, typed, typesFor } from './operators.ts';
import { describeValue } from './words.ts';

interface ValueFieldProps {
  condition: ConditionDraft;
  body: BodyPath | undefined;
  onChange: (condition: ConditionDraft) => void;
  error: string | undefined;
}

export function ValueField(props: ValueFieldProps) {
  const { condition, body, onChange, error } = props;
  const { type, text, operator } = condition;
  const offered = typesFor(operator, body);
  const types = offered.includes(type) ? offered : [...offered, type];
  const setText = (next: string) => onChange({ ...condition, text: next });
  return (
    <div className="condition-value">
      {types.length > 1 && (
        <SelectField
          label="Type"
          isLabelHidden
          value={type}
          onChange={(next) => onChange({ ...condition, ...typed(next as ValueType, '') })}
          choices={types.map((id) => ({ id, title: typeNames[id] }))}
        />
      )}
      {operator === 'in' ? (
        <ListField {...props} />
      ) : type === 'boolean' ? (
        <SelectField
          label="Value"
          isLabelHidden
          value={text}
          onChange={setText}
          choices={booleans}
          error={error}
        />
      ) : (
        <SuggestField
          label="Value"
          value={text}
          onChange={setText}
          suggestions={comparisons.includes(operator) ? [] : choicesOf(condition, body)}
          placeholder={type === 'number' ? '0' : 'Text'}
          error={error}
          maxLength={textCharactersMax}
        />
      )}
    </div>
  );
}

const typeNames: Readonly<Record<ValueType, string>> = {
  string: 'Text',
  number: 'Number',
  boolean: 'True or false',
  null: 'Null',
};
const booleans = [
  { id: 'true', title: 'true' },
  { id: 'false', title: 'false' },
];

/** The values of the schema that the list does not have yet. */
function choicesOf({ type, operator, list }: ConditionDraft, body: BodyPath | undefined) {
  return (body?.choices ?? [])
    .filter((choice) => typeof choice === type && (operator !== 'in' || !list.includes(choice as string)))
    .map((choice) => ({ text: String(choice) }));
}

function ListField({ condition, body, onChange, error }: ValueFieldProps) {
  const { type, text, list } = condition;
  const isFull = list.length >= choicesMax;
  const canAdd = text !== '' && !isFull && textProblem(type, text) === undefined;
  const add = () => {
    if (canAdd) onChange({ ...condition, list: listOf(condition), text: '' });
  };
  const addByKey = (event: KeyboardEvent) => {
    // Also keeps Enter from sending the form.
    if (event.key !== 'Enter' || text === '' || event.nativeEvent.isComposing) return;
    event.preventDefault();
    add();
  };
  const addLines = (event: ClipboardEvent) => {
    const lines = event.clipboardData.getData('text').split(/\r?\n/).filter(Boolean);
    if (lines.length < 2) return;
    event.preventDefault();
    const valid = lines.filter((line) => textProblem(type, line) === undefined);
    const next = [...new Set([...list, ...valid.map((line) => readValue(type, line))])].slice(0, choicesMax);
    onChange({ ...condition, list: next });
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: it only listens to its field
    <div className="condition-list" onKeyDown={addByKey} onPaste={addLines}>
      <Values condition={condition} onChange={onChange} />
      <div className="condition-add">
        <SuggestField
          label="Value to add"
          value={text}
          onChange={(next) => onChange({ ...condition, text: next })}
          suggestions={choicesOf(condition, body)}
          placeholder={isFull ? `At most ${choicesMax} values` : 'Add a value'}
          error={error}
          maxLength={textCharactersMax}
        />
        <Button isIcon aria-label="Add value" isDisabled={!canAdd} onPress={add}>
          <Plus size={16} aria-hidden />
        </Button>
      </div>
    </div>
  );
}

function Values({ condition, onChange }: Pick<ValueFieldProps, 'condition' | 'onChange'>) {
  const { list } = condition;
  if (list.length === 0) return null;
  const keyOf = (value: (typeof list)[number]) => `${typeOf(value)} ${value}`;
  return (
    <TagGroup
      aria-label="Values"
      onRemove={(keys) => onChange({ ...condition, list: list.filter((value) => !keys.has(keyOf(value))) })}
    >
      <TagList className="value-tags">
        {list.map((value) => (
          <Tag key={keyOf(value)} id={keyOf(value)} className="value-tag" textValue={String(value)}>
            <span className="breakable">{describeValue(value)}</span>
            <AriaButton slot="remove" className="value-tag-remove" aria-label="Remove">
              <X size={12} aria-hidden />
            </AriaButton>
          </Tag>
        ))}
      </TagList>
    </TagGroup>
  );
}
