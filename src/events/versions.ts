/**
 * Versions of a kind's body. The newest is what publishers send and what is stored. Each earlier one says how its body is made
 * from the body of the next newer version, so a body goes back in steps and is never converted forward.
 *
 *   published (newest) → from of the version before → from of the one before that → … → the version of the subscription
 *
 * A version is named by a date. A subscription has one date for all kinds, and gets of each kind the newest version that is not
 * later.
 */

import type { TSchema } from 'typebox';
import type { EventKind } from './kind.ts';

type Versioned = Pick<EventKind, 'version' | 'versions'>;

/** The names of a kind's versions, oldest first; none if the kind has no versions. */
export function versionNames({ version, versions = {} }: Versioned): string[] {
  return version === undefined ? [] : [...Object.keys(versions).sort(), version];
}

/** The newest version of any kind, which new subscriptions get; null if no kind has versions. */
export function newestVersion(kinds: Iterable<Versioned>): string | null {
  return knownVersions(kinds).at(-1) ?? null;
}

/** The versions of all kinds, oldest first. */
export function knownVersions(kinds: Iterable<Versioned>): string[] {
  return [...new Set([...kinds].flatMap(versionNames))].sort();
}

/**
 * The version of a kind that a subscription gets: the newest that is not later than its own. The kind's oldest, if all are later or
 * the subscription has none because it was made before there were any.
 * @param names the kind's versions, oldest first, at least one
 */
export function versionFor(names: readonly string[], pinned: string | null): string {
  return names.findLast((name) => name <= (pinned ?? '')) ?? (names[0] as string);
}

/**
 * Runs the functions of the platform.
 * @param body is changed
 * @param to an earlier version than `from`
 */
export function convertBody(kind: Versioned, body: unknown, from: string, to: string): unknown {
  const steps = versionNames(kind).filter((name) => name >= to && name < from);
  let converted = body;
  for (const name of steps.toReversed()) {
    converted = kind.versions?.[name]?.from(converted);
    if (typeof converted === 'object' && converted !== null && 'then' in converted) {
      throw new TypeError('from returned a promise: it must return the body');
    }
  }
  return converted;
}

/** A version as the catalogue shows it. */
export interface DescribedVersion {
  version: string;
  schema: TSchema;
  example: unknown;
  deprecation: string | null;
  sunset: string | null;
}

/** The versions of a kind, newest first. */
export function describeVersions(kind: EventKind): DescribedVersion[] {
  const newest = kind.version ?? '';
  return versionNames(kind)
    .toReversed()
    .map((version) => {
      const earlier = kind.versions?.[version];
      const { deprecation = null, sunset = null } = earlier ?? {};
      const { schema } = earlier ?? kind;
      const example =
        earlier === undefined
          ? kind.example
          : convertBody(kind, structuredClone(kind.example), newest, version);
      return { version, schema, example, deprecation, sunset };
    });
}
