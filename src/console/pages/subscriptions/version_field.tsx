/** Chooses the version of event bodies. Absent where no kind has versions. */

import { useQuery } from '@tanstack/react-query';
import type { EventKind } from '../../api/generated.ts';
import { kindsQuery } from '../../api/queries.ts';
import { type Choice, SelectField } from '../../ui/fields.tsx';

/** In drafts: the newest version, for a new subscription, and none, for one that was made before there were versions. */
export const newest = 'newest';
export const oldest = 'oldest';

interface VersionFieldProps {
  value: string;
  onChange: (version: string) => void;
  error: string | undefined;
}

export function VersionField({ value, onChange, error }: VersionFieldProps) {
  const { data } = useQuery(kindsQuery);
  const names = versionNames(data?.items ?? []);
  if (names.length === 0) return null;
  const chosen = value === newest ? (names[0] as string) : value;
  // The operator may have removed the version of the subscription.
  const known = [...names, ...(chosen === oldest || names.includes(chosen) ? [] : [chosen])].sort().reverse();
  const choices: Choice[] = known.map((name, index) => ({
    id: name,
    title: index === 0 ? `${name} (newest)` : name,
  }));
  if (chosen === oldest) choices.push({ id: oldest, title: 'Oldest of each kind' });
  return (
    <SelectField
      label="Version"
      description="Of each kind, the newest version that is not later is sent. New versions change nothing until you choose them."
      value={chosen}
      onChange={onChange}
      choices={choices}
      error={error}
    />
  );
}

/** The versions of all kinds, newest first. */
export function versionNames(kinds: readonly EventKind[]): string[] {
  return [...new Set(kinds.flatMap(({ versions }) => versions.map(({ version }) => version)))]
    .sort()
    .reverse();
}
