/** "Would this event match?": an example to edit, and the server's answer. */

import { RotateCcw } from 'lucide-react';
import { ApiError, describeFailure } from '../../../api/problem.ts';
import { Button } from '../../../ui/button.tsx';
import { SelectField, TextField } from '../../../ui/fields.tsx';
import { Notice } from '../../../ui/states.tsx';
import type { MatchAnswer } from './match.ts';

interface MatchPanelProps {
  kinds: readonly string[];
  kind: string;
  onKind: (kind: string) => void;
  text: string;
  onText: (text: string) => void;
  /** Absent if the text is that of the kind. */
  onReset: (() => void) | undefined;
  isJson: boolean;
  /** Whether each condition has its parts. */
  isComplete: boolean;
  answer: MatchAnswer;
}

export function MatchPanel(props: MatchPanelProps) {
  const { kinds, kind, onKind, text, onText, onReset, isJson } = props;
  return (
    <section className="filter-trial" aria-label="Try the filter">
      <div className="row-between">
        <h3>Would this event match?</h3>
        {onReset !== undefined && (
          <Button look="ghost" isSmall onPress={onReset}>
            <RotateCcw size={14} aria-hidden /> Restore the example
          </Button>
        )}
      </div>
      {kinds.length > 1 && (
        <SelectField
          label="Kind of the example"
          value={kind}
          onChange={onKind}
          choices={kinds.map((id) => ({ id, title: id }))}
        />
      )}
      <TextField
        label={kinds.length > 1 ? 'Body' : `Body of ${kind}`}
        isLong
        isMono
        spellCheck="false"
        value={text}
        onChange={onText}
        error={isJson ? null : 'This is not JSON.'}
      />
      <Answer {...props} />
    </section>
  );
}

function Answer(props: MatchPanelProps) {
  const { isOld } = props.answer;
  const { look, title, text } = describe(props);
  return (
    <div role="status" aria-busy={isOld} className={isOld ? 'filter-answer-old' : undefined}>
      <Notice look={look} title={title}>
        {text !== undefined && <p>{text}</p>}
      </Notice>
    </div>
  );
}

interface Description {
  look: 'info' | 'good' | 'warn' | 'bad';
  title: string;
  text?: string;
}

function describe({ isJson, isComplete, answer: { data, error } }: MatchPanelProps): Description {
  if (!isComplete) return { look: 'info', title: 'Complete the conditions to see the answer.' };
  if (!isJson) return { look: 'info', title: 'Correct the body to see the answer.' };
  if (error !== null) {
    const isFilter = error instanceof ApiError && [...error.errors.keys()].some(isOfFilter);
    return isFilter
      ? { look: 'bad', title: 'The filter does not fit this kind.' }
      : { look: 'bad', title: 'There is no answer.', text: describeFailure(error) };
  }
  if (data === undefined) return { look: 'info', title: 'Asking the server…' };
  return data.matches
    ? { look: 'good', title: 'Yes, it would be sent.' }
    : { look: 'warn', title: 'No, it would not be sent.' };
}

const isOfFilter = (pointer: string) => pointer === '/filter' || pointer.startsWith('/filter/');
