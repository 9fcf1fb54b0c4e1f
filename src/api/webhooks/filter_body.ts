/** The member `filter` of subscriptions: its schema, and the check against the kinds that the subscription gets. */

import Type, { type TSchema } from 'typebox';
import type { Catalogue } from '../../events/catalogue.ts';
import {
  choicesMax,
  conditionsMax,
  type Filter,
  filterBytesMax,
  filterErrors,
  pathCharactersMax,
  textCharactersMax,
} from '../../events/filter.ts';
import { ErrorList } from '../../http/problem.ts';
import { strict, worded } from '../../http/schema.ts';

/**
 * Maximum bytes as JSON of the filter of an app's own subscription. It is evaluated for the events of all users of the app, so large ones
 * would delay what these users' other apps get.
 */
const ownFilterBytesMax = 2_048;

const Text = () => Type.String({ maxLength: textCharactersMax });
const Scalar = () =>
  worded(
    `a string of at most ${textCharactersMax} characters, a number, true, false or null`,
    Type.Union([Text(), Type.Number(), Type.Boolean(), Type.Null()]),
  );
const Ordered = () => worded('a string or a number', Type.Union([Text(), Type.Number()]));

const members = {
  path: Type.String({ minLength: 1, maxLength: pathCharactersMax }),
  eq: Type.Optional(Scalar()),
  in: Type.Optional(Type.Array(Scalar(), { minItems: 1, maxItems: choicesMax })),
  prefix: Type.Optional(Type.String({ minLength: 1, maxLength: textCharactersMax })),
  exists: Type.Optional(Type.Boolean()),
  gt: Type.Optional(Ordered()),
  gte: Type.Optional(Ordered()),
  lt: Type.Optional(Ordered()),
  lte: Type.Optional(Ordered()),
};
/** The path and one operator. */
const Condition = () => Type.Object(members, { ...strict, minProperties: 2, maxProperties: 2 });

/** With the code of a filter that has another shape. */
const coded = <S extends TSchema>(words: string, schema: S) => worded(words, schema, 'invalid-filter');
const Conditions = () =>
  coded(
    `an array of 1 to ${conditionsMax} conditions`,
    Type.Array(
      coded(
        'a path and one operator, or not with such a condition',
        Type.Union([Condition(), Type.Object({ not: Condition() }, strict)]),
      ),
      { minItems: 1, maxItems: conditionsMax },
    ),
  );

/** Either all or any: one object describes wrong conditions better than a union. */
export const FilterSchema = Type.Unsafe<Filter>(
  coded(
    'an object with conditions in either all or any',
    Type.Object(
      { all: Type.Optional(Conditions()), any: Type.Optional(Conditions()) },
      {
        ...strict,
        minProperties: 1,
        maxProperties: 1,
        description:
          'Conditions on the body of an event. An event that does not meet them becomes no delivery.',
      },
    ),
  ),
);

/** Adds an error for each condition that cannot be met by a kind of the subscription. */
export function checkFilter(
  filter: Filter | null | undefined,
  patterns: readonly string[],
  errors: ErrorList,
  { kinds }: Pick<Catalogue, 'kinds'>,
): void {
  if (filter == null) return;
  if (!hasAtMost(filterBytesMax, filter, errors)) return;
  // Events of the server itself are addressed to certain subscriptions, and not filtered.
  const matched = [...kinds.values()].filter(
    (kind) => !kind.isBuiltIn && kind.patterns.some((pattern) => patterns.includes(pattern)),
  );
  if (matched.length === 0) errors.add(['filter'], 'needs a kind that is not built in', 'filter-kind');
  for (const { place, message, code } of filterErrors(filter, matched)) {
    errors.add(['filter', ...place], message, code);
  }
}

/** @throws Problem 422 if the filter is too large for an app's own subscription */
export function requireOwnFilter(filter: Filter | null | undefined): void {
  if (filter == null) return;
  const errors = new ErrorList();
  hasAtMost(ownFilterBytesMax, filter, errors);
  errors.raise();
}

function hasAtMost(bytesMax: number, filter: Filter, errors: ErrorList): boolean {
  if (Buffer.byteLength(JSON.stringify(filter)) <= bytesMax) return true;
  errors.add(['filter'], `must not have more than ${bytesMax} bytes as JSON`, 'filter-too-large');
  return false;
}
