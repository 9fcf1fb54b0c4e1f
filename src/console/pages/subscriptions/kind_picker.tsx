/** Selects event kinds from the catalogue. Shows the schema and an example beside the list. */

import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { EventKind } from '../../api/generated.ts';
import { kindsQuery } from '../../api/queries.ts';
import { Button } from '../../ui/button.tsx';
import { Checkbox } from '../../ui/fields.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { KindDetails } from '../events/kind_details.tsx';

interface KindPickerProps {
  value: readonly string[];
  onChange: (kinds: string[]) => void;
  error: string | null;
}

export function KindPicker({ value, onChange, error }: KindPickerProps) {
  const { data, error: failure, refetch } = useQuery(kindsQuery);
  const [shown, setShown] = useState<string | null>(null);
  if (failure !== null) return <Failure error={failure} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const kinds = data.items.filter(({ name }) => name !== 'ping');
  const details = kinds.find(({ name }) => name === shown);
  return (
    <fieldset className="field kind-picker">
      <legend className="field-label">Events</legend>
      {error !== null && (
        <p className="field-error" role="alert">
          {error}
        </p>
      )}
      <div className="kind-picker-columns">
        <div className="kind-list">
          <div className="kind-row">
            <Checkbox isSelected={value.includes('*')} onChange={(isOn) => onChange(isOn ? ['*'] : [])}>
              <strong>All kinds</strong>{' '}
              <span className="soft small">including kinds that are added later</span>
            </Checkbox>
          </div>
          {groupsOf(kinds).map((group) => (
            <KindGroup
              key={group.pattern ?? group.kinds[0]?.name}
              group={group}
              value={value}
              onChange={onChange}
              shown={shown}
              onShow={setShown}
            />
          ))}
        </div>
        <div className="kind-preview" aria-live="polite">
          {details === undefined ? (
            <p className="soft">Select Show to see an example and the schema of a kind.</p>
          ) : (
            <KindDetails kind={details} />
          )}
        </div>
      </div>
    </fieldset>
  );
}

interface Group {
  /** Such as `article.*`; null for a kind without a group. */
  pattern: string | null;
  kinds: EventKind[];
}

function groupsOf(kinds: readonly EventKind[]): Group[] {
  const groups = new Map<string, EventKind[]>();
  for (const kind of kinds) {
    const word = kind.name.split('.', 1)[0] as string;
    groups.set(word, [...(groups.get(word) ?? []), kind]);
  }
  return [...groups].map(([word, members]) => ({
    pattern: members.length > 1 ? `${word}.*` : null,
    kinds: members,
  }));
}

interface KindGroupProps extends Omit<KindPickerProps, 'error'> {
  group: Group;
  shown: string | null;
  onShow: (name: string | null) => void;
}

function KindGroup({ group: { pattern, kinds }, value, onChange, shown, onShow }: KindGroupProps) {
  const isAll = value.includes('*');
  const isGroup = isAll || (pattern !== null && value.includes(pattern));
  const names = kinds.map(({ name }) => name);
  const toggleGroup = (isOn: boolean) => {
    const others = value.filter((each) => each !== pattern && !names.includes(each));
    onChange(isOn && pattern !== null ? [...others, pattern] : others);
  };
  const toggle = (name: string, isOn: boolean) => {
    onChange(isOn ? [...value, name] : value.filter((each) => each !== name));
  };
  return (
    <>
      {pattern !== null && (
        <div className="kind-row">
          <Checkbox isSelected={isGroup} isDisabled={isAll} onChange={toggleGroup}>
            <code>{pattern}</code>
          </Checkbox>
        </div>
      )}
      {kinds.map(({ name, description }) => (
        <div key={name} className={pattern === null ? 'kind-row' : 'kind-row kind-row-inner'}>
          <Checkbox
            isSelected={isGroup || value.includes(name)}
            isDisabled={isGroup}
            onChange={(isOn) => toggle(name, isOn)}
          >
            <code>{name}</code>
            <br />
            <span className="soft small">{description}</span>
          </Checkbox>
          <Button
            look="ghost"
            isSmall
            aria-label={`Show ${name}`}
            aria-pressed={shown === name}
            onPress={() => onShow(shown === name ? null : name)}
          >
            Show
          </Button>
        </div>
      ))}
    </>
  );
}
