/** `POST /event-kinds/<kind>/match`: whether an event would meet a filter and which of its conditions, evaluated as fan-out does. */

import { sql } from 'kysely';
import Type from 'typebox';
import { conditionsMax, conditionsOf, filterPath } from '../../events/filter.ts';
import { jsonBody, ok, pathParameter } from '../../http/describe.ts';
import { ErrorList, Problem } from '../../http/problem.ts';
import { named, strict } from '../../http/schema.ts';
import { token } from '../admission.ts';
import { route, serve } from '../route.ts';
import { checkFilter, FilterSchema } from './filter_body.ts';
import type { WebhookRoutesOptions } from './subscription_access.ts';

const MatchAsked = named(
  'FilterMatchAsked',
  Type.Object(
    {
      filter: FilterSchema,
      body: Type.Optional(Type.Any({ description: 'By default the example of the kind.' })),
    },
    strict,
  ),
);

const Match = named(
  'FilterMatch',
  Type.Object(
    {
      matches: Type.Boolean(),
      conditions: Type.Array(Type.Boolean(), {
        description: 'Which conditions are met, in the order of the filter.',
        minItems: 1,
        maxItems: conditionsMax,
      }),
    },
    strict,
  ),
);

export const filterRoutes = {
  match: route({
    id: 'match_event_filter',
    method: 'post',
    path: '/event-kinds/{kind}/match',
    tag: 'events',
    summary: 'Try a filter',
    description:
      'Says whether an event of this kind with this body meets a filter of a subscription, and which of its conditions.',
    admission: token(),
    parameters: [pathParameter('kind', 'The name of the kind.', Type.String())],
    body: jsonBody(MatchAsked, {
      filter: { all: [{ path: '/ref', prefix: 'refs/heads/' }] },
      body: { ref: 'refs/heads/main', commits: [], repository: { name: 'example' } },
    }),
    responses: ok('Whether it matches.', Match),
  }),
};

export function registerFilters(options: WebhookRoutesOptions): void {
  const { db, catalogue } = options;

  serve(options, filterRoutes.match, async ({ params: { kind: name }, body: { filter, body } }) => {
    const kind = catalogue.kinds.get(name);
    if (kind === undefined) throw new Problem(404, 'There is no such kind of events.');
    const errors = new ErrorList();
    checkFilter(filter, [name], errors, catalogue);
    errors.raise();
    const text = JSON.stringify(body === undefined ? kind.example : body);
    const parts = conditionsOf(filter).map((each) => filterPath({ all: [each] }));
    const { rows } = await sql<{ matches: boolean | null }>`
      with asked as materialized (select body_as_json(${text}) as body)
      select jsonb_path_match(body, path::jsonpath, '{}', true) as matches
      from asked cross join unnest(${[filterPath(filter), ...parts]}::text[]) with ordinality as each (path, place)
      order by place`.execute(db);
    const [matches = false, ...conditions] = rows.map((row) => row.matches ?? false);
    return { matches, conditions };
  });
}
