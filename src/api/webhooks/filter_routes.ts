/** `POST /event-kinds/<kind>/match`: whether an event would meet a filter and which of its conditions, evaluated as fan-out does. */

import { sql } from 'kysely';
import Type from 'typebox';
import { eventBodyBytesMax, eventTooLarge } from '../../events/batch.ts';
import { conditionsMax, conditionsOf, filterBytesMax, filterPath } from '../../events/filter.ts';
import { bodyTurn } from '../../http/body_limit.ts';
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

/** A filter and the body of an event, and the names of the two. */
const bytesMax = filterBytesMax + eventBodyBytesMax + 1_024;

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
      'Says whether an event of this kind with this body meets a filter of a subscription, and which of its conditions. The body can have as much as that of an event.',
    admission: token(),
    parameters: [pathParameter('kind', 'The name of the kind.', Type.String())],
    body: {
      ...jsonBody(MatchAsked, {
        filter: { all: [{ path: '/ref', prefix: 'refs/heads/' }] },
        body: { ref: 'refs/heads/main', commits: [], repository: { name: 'example' } },
      }),
      bytesMax,
    },
    responses: ok('Whether it matches.', Match),
  }),
};

export function registerFilters(options: WebhookRoutesOptions): void {
  const { db, catalogue } = options;

  serve(options, filterRoutes.match, async ({ request, params: { kind: name }, body: { filter, body } }) => {
    const kind = catalogue.kinds.get(name);
    if (kind === undefined) throw new Problem(404, 'There is no such kind of events.');
    const errors = new ErrorList();
    checkFilter(filter, [name], errors, catalogue);
    errors.raise();
    // It was parsed in another turn.
    if (body !== undefined) await bodyTurn(request, Number(request.headers['content-length'] ?? bytesMax));
    const text = JSON.stringify(body === undefined ? kind.example : body);
    if (Buffer.byteLength(text) > eventBodyBytesMax) throw eventTooLarge('');
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
