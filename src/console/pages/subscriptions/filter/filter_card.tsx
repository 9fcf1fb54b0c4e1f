/** The editor of a subscription's filter. */

import { useQuery } from '@tanstack/react-query';
import { Plus } from 'lucide-react';
import { useMemo, useRef, useState } from 'react';
import { ToggleButton, ToggleButtonGroup } from 'react-aria-components';
import type { EventKind } from '../../../api/generated.ts';
import { ApiError } from '../../../api/problem.ts';
import { kindsQuery } from '../../../api/queries.ts';
import { Button } from '../../../ui/button.tsx';
import { CodeBlock } from '../../../ui/copy.tsx';
import { Card } from '../../../ui/page.tsx';
import { Notice } from '../../../ui/states.tsx';
import { type BodyPath, commonPaths } from './body_paths.ts';
import { ConditionFields } from './condition_fields.tsx';
import {
  type ConditionDraft,
  conditionsMax,
  type FilterDraft,
  newCondition,
  noFilter,
  problemOf,
  refusedConditions,
  toFilter,
} from './draft.ts';
import { FilterWords } from './filter_words.tsx';
import { filteredKinds } from './kinds.ts';
import { type MatchAnswer, useMatch } from './match.ts';
import { MatchPanel } from './match_panel.tsx';

interface FilterCardProps {
  /** The kinds of the subscription, also as patterns. */
  kinds: readonly string[];
  draft: FilterDraft;
  onChange: (draft: FilterDraft) => void;
  /** The error of the form; absent if the filter is valid. */
  error: string | undefined;
  /** The server's messages by JSON pointer of the request's body. */
  refused: ReadonlyMap<string, string>;
}

export function FilterCard({ kinds: patterns, draft, onChange, error, refused }: FilterCardProps) {
  const { data } = useQuery(kindsQuery);
  const kinds = useMemo(() => filteredKinds(data?.items ?? [], patterns), [data, patterns]);
  const paths = useMemo(() => commonPaths(kinds.map(({ schema }) => schema)), [kinds]);
  const root = useRef<HTMLDivElement>(null);
  // The button that had the focus is gone.
  const focusAdd = () =>
    requestAnimationFrame(() => root.current?.querySelector<HTMLElement>('[data-add]')?.focus());
  const [added, setAdded] = useState<number | null>(null);
  const add = () => {
    const condition = newCondition(draft.conditions);
    setAdded(condition.id);
    onChange({ ...draft, conditions: [...draft.conditions, condition] });
  };
  return (
    <Card title="Filter" description="Chooses events by what is in their body.">
      <div ref={root}>
        {draft.conditions.length === 0 ? (
          <div className="stack">
            <p className="soft">
              {kinds.length === 0
                ? 'Select events first. Events that the server itself publishes cannot be filtered.'
                : 'There is no filter: every event of the selected kinds is sent.'}
            </p>
            {kinds.length > 0 && !canBeFiltered(kinds, paths) && <NothingInCommon />}
            {canBeFiltered(kinds, paths) && (
              <div>
                <Button onPress={add} data-add>
                  <Plus size={16} aria-hidden /> Add a filter
                </Button>
              </div>
            )}
          </div>
        ) : (
          <Editor
            {...{ kinds, paths, draft, onChange, error, refused, added, onAdd: add, onRemoved: focusAdd }}
          />
        )}
      </div>
    </Card>
  );
}

/** A schema may allow values that it does not list. */
function canBeFiltered(kinds: readonly EventKind[], paths: readonly BodyPath[]): boolean {
  return (
    kinds.length === 1 || paths.length > 0 || kinds.some(({ schema }) => commonPaths([schema]).length === 0)
  );
}

function NothingInCommon() {
  return (
    <Notice title="These kinds have no value in common">
      <p>
        A filter needs values that every selected kind has. Select fewer kinds, or make one subscription for
        each.
      </p>
    </Notice>
  );
}

interface EditorProps extends Omit<FilterCardProps, 'kinds'> {
  kinds: readonly EventKind[];
  paths: readonly BodyPath[];
  /** The id of the condition that was added last. */
  added: number | null;
  onAdd: () => void;
  onRemoved: () => void;
}

function Editor({ kinds, paths, draft, onChange, error, refused, ...adding }: EditorProps) {
  const [isStrict, setStrict] = useState(false);
  // Once the form was sent, what is missing is shown until it is there.
  if (error !== undefined && !isStrict) setStrict(true);
  const problems = draft.conditions.map(problemOf);
  const isComplete = problems.every((problem) => problem === undefined);
  const filter = isComplete ? toFilter(draft) : null;
  const trial = useTrial(kinds, filter);
  const refusals = refusedConditions(new Map([...errorsOf(trial.answer), ...refused]));
  const wholeError = refused.get('/filter') ?? refused.get(`/filter/${draft.mode}`);
  const { data } = trial.answer;
  return (
    <div className="filter-columns">
      <div className="stack">
        {wholeError !== undefined && (
          <p className="field-error" role="alert">
            It {wholeError}.
          </p>
        )}
        {!canBeFiltered(kinds, paths) && kinds.length > 0 && <NothingInCommon />}
        <Mode mode={draft.mode} onChange={(mode) => onChange({ ...draft, mode })} />
        <Conditions
          conditions={draft.conditions}
          paths={paths}
          problemAt={(index) => refusals.get(index) ?? (isStrict ? problems[index] : undefined)}
          metAt={(index) =>
            data?.conditions.length === problems.length ? data.conditions[index] : undefined
          }
          onChange={(conditions) => onChange({ ...draft, conditions })}
          onRemoveAll={() => {
            onChange(noFilter);
            adding.onRemoved();
          }}
          {...adding}
        />
        <FilterWords draft={draft} />
        {filter !== null && (
          <details className="more">
            <summary>Filter as JSON</summary>
            <CodeBlock label="the filter" title="filter" code={JSON.stringify(filter, null, 2)} />
          </details>
        )}
      </div>
      {trial.panel !== null && <MatchPanel {...trial.panel} isComplete={isComplete} answer={trial.answer} />}
    </div>
  );
}

function errorsOf({ error, isOld }: MatchAnswer): ReadonlyMap<string, string> {
  return error instanceof ApiError && !isOld ? error.errors : new Map();
}

/** The example that is tried, of one of the kinds. */
function useTrial(kinds: readonly EventKind[], filter: ReturnType<typeof toFilter>) {
  const [name, setName] = useState<string | null>(null);
  const [texts, setTexts] = useState<Readonly<Record<string, string>>>({});
  const kind = kinds.find((each) => each.name === name) ?? kinds[0];
  const example = JSON.stringify(kind?.example, null, 2);
  const text = (kind && texts[kind.name]) ?? example;
  const body = useMemo(() => parse(text ?? ''), [text]);
  const isReady = kind !== undefined && filter !== null && body !== undefined;
  const answer = useMatch(isReady ? { kind: kind.name, filter, body: body.value } : null);
  if (kind === undefined) return { panel: null, answer };
  const setText = (next: string) => setTexts({ ...texts, [kind.name]: next });
  const panel = {
    kinds: kinds.map((each) => each.name),
    kind: kind.name,
    onKind: setName,
    text: text as string,
    onText: setText,
    onReset: text === example ? undefined : () => setText(example),
    isJson: body !== undefined,
  };
  return { panel, answer };
}

function parse(text: string): { value: unknown } | undefined {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return undefined;
  }
}

function Mode({
  mode,
  onChange,
}: {
  mode: FilterDraft['mode'];
  onChange: (mode: FilterDraft['mode']) => void;
}) {
  return (
    <div className="row">
      <span>Send if</span>
      <ToggleButtonGroup
        aria-label="How many conditions must be true"
        className="segments"
        selectionMode="single"
        disallowEmptySelection
        selectedKeys={[mode]}
        onSelectionChange={(keys) => onChange([...keys][0] as FilterDraft['mode'])}
      >
        <ToggleButton id="all" className="segment">
          all
        </ToggleButton>
        <ToggleButton id="any" className="segment">
          any
        </ToggleButton>
      </ToggleButtonGroup>
      <span>of these are true:</span>
    </div>
  );
}

interface ConditionsProps extends Pick<EditorProps, 'added' | 'onAdd' | 'onRemoved'> {
  conditions: readonly ConditionDraft[];
  paths: readonly BodyPath[];
  problemAt: (index: number) => ReturnType<typeof problemOf>;
  metAt: (index: number) => boolean | undefined;
  onChange: (conditions: ConditionDraft[]) => void;
  onRemoveAll: () => void;
}

function Conditions(props: ConditionsProps) {
  const { conditions, paths, problemAt, metAt, onChange, onRemoveAll, added, onAdd, onRemoved } = props;
  const isFull = conditions.length >= conditionsMax;
  const remove = (index: number) => {
    if (conditions.length === 1) return onRemoveAll();
    onChange(conditions.toSpliced(index, 1));
    onRemoved();
  };
  return (
    <>
      <ol className="conditions">
        {conditions.map((condition, index) => (
          <li key={condition.id}>
            <ConditionFields
              number={index + 1}
              condition={condition}
              paths={paths}
              problem={problemAt(index)}
              isMet={metAt(index)}
              isFocused={condition.id === added}
              onChange={(next) => onChange(conditions.with(index, next))}
              onRemove={() => remove(index)}
            />
          </li>
        ))}
      </ol>
      <div className="row">
        {!isFull && (
          <Button isSmall onPress={onAdd} data-add>
            <Plus size={14} aria-hidden /> Add condition
          </Button>
        )}
        <Button look="ghost" isSmall onPress={onRemoveAll}>
          Remove the filter
        </Button>
        {isFull && <span className="soft small">A filter has at most {conditionsMax} conditions.</span>}
      </div>
    </>
  );
}
