/** Shows a filter in plain English. */

import type { FilterDraft } from './draft.ts';
import { type ConditionWords, describeCondition } from './words.ts';

/** Conditions without a path are left out. */
export function FilterWords({ draft: { mode, conditions } }: { draft: FilterDraft }) {
  const named = conditions.filter(({ path }) => path.trim() !== '');
  const described = named.map((each) => ({ id: each.id, ...describeCondition(each) }));
  const [first] = described;
  if (first === undefined) return null;
  return (
    <div className="filter-words">
      {described.length === 1 ? (
        <p>
          Only events where <Words {...first} />
          {first.value !== '…' && '.'}
        </p>
      ) : (
        <>
          <p>
            Only events where <strong>{mode === 'all' ? 'all' : 'at least one'}</strong> of these{' '}
            {mode === 'all' ? 'are' : 'is'} true:
          </p>
          <ul>
            {described.map(({ id, ...words }) => (
              <li key={id}>
                <Words {...words} />
              </li>
            ))}
          </ul>
        </>
      )}
      {named.some(({ isNot, operator }) => isNot && operator !== 'exists' && operator !== 'absent') && (
        <p className="soft small">A condition with “not” is also true if the body does not have the value.</p>
      )}
    </div>
  );
}

function Words({ path, words, value }: ConditionWords) {
  return (
    <>
      <code className="breakable">{path}</code> {words}
      {value !== '' && (
        <>
          {' '}
          <span className="filter-value">{value}</span>
        </>
      )}
    </>
  );
}
