/**
 * What agents are told of, on the account page: subscriptions of an app that an agent made, until when they last, and how to stop them. An app
 * shown alone has pages of them, an app in the list the first few.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import type { EventKind } from '../events/kind.ts';
import { withDeliveryHold } from '../grants/delivery_hold.ts';
import { type Html, html } from '../http/html.ts';
import {
  type AgentSubscriptionOfAccount,
  findLaneOfAgent,
  listAgentSubscriptions,
} from '../webhooks/subscriptions/agent_subscription.ts';
import { actAsOwner, endSubscription } from '../webhooks/subscriptions/subscription.ts';
import { type AccountPlace, firstPlace, placeFields, placeUrl, readPlace } from './account_place.ts';
import { fitting, shortened } from './bounded.ts';
import { type FormTokens, formTokenField } from './form_token.ts';

/** Maximum subscriptions of an app in the list, and on a page of an app that is shown alone, which are also limited in bytes. */
const shownInList = 3;
const shownAlone = 25;
const bytesMax = 32_768;
/** Maximum conditions of one, and characters of a name and of a value. */
const conditionsMax = 6;
const nameCharactersMax = 60;
const valueCharactersMax = 200;

/** Finds whose page it is. */
type FindSession = (
  request: FastifyRequest,
  reply: FastifyReply,
) => Promise<{ account: { id: string }; secret: string } | undefined>;

export interface AgentSubscriptionPages {
  db: Database;
  formTokens: FormTokens;
  /** The context of the account page's form tokens. */
  contextOf: (secret: string) => string;
  findSession: FindSession;
}

/** Stopping a subscription. The app keeps its access, and may subscribe again. */
export function registerAgentSubscriptions(
  app: FastifyInstance,
  { db, formTokens, contextOf, findSession }: AgentSubscriptionPages,
): void {
  app.post('/account/stop', async (request, reply) => {
    const session = await findSession(request, reply);
    if (session !== undefined) {
      formTokens.check(request, contextOf(session.secret));
      const { subscription } = request.body as Record<string, unknown>;
      if (typeof subscription === 'string' && isId(subscription)) {
        await stop(db, session.account.id, subscription);
      }
    }
    const shown = placeUrl(readPlace(request.body));
    return reply.header('cache-control', 'no-store').redirect(shown, 303);
  });
}

async function stop(db: Database, accountId: string, id: string): Promise<void> {
  const lane = await findLaneOfAgent(db, accountId, id);
  if (lane === undefined) return;
  const owner = { kind: 'user', accountId } as const;
  await withDeliveryHold(db, { clientId: null, accountId: null, lane }, async (tx) => {
    await actAsOwner(tx, owner);
    await endSubscription(tx, owner, id);
  });
}

interface Shown {
  accountId: string;
  /** By client id; a grant of each, by which the page of the app is found. */
  apps: ReadonlyMap<string, string>;
  place: AccountPlace;
  kinds: readonly EventKind[];
  token: string;
}

/** What each of the apps is told of, by client. Apps that are told of nothing have no entry. */
export async function agentSubscriptionsContents(
  db: Database,
  { accountId, apps, place, kinds, token }: Shown,
): Promise<ReadonlyMap<string, Html>> {
  const isAlone = place.app !== null;
  const all = await listAgentSubscriptions(db, accountId, {
    clientIds: [...apps.keys()],
    limit: isAlone ? shownAlone : shownInList,
    after: isAlone ? place.after : null,
  });
  const contents = Map.groupBy(all, ({ clientId }) => clientId)
    .entries()
    .map(([clientId, own]) => {
      const items = fitting(
        own.map((each) => itemContent(each, kinds, token, place)),
        bytesMax,
      );
      const left = (own[0]?.count ?? 0) - items.length;
      const after = isAlone ? (own[items.length - 1]?.id ?? null) : null;
      const rest = placeUrl({ ...firstPlace, app: apps.get(clientId) ?? null, after });
      return [
        clientId,
        html`<p class="small">It is told when:</p><ul class="may small">${items}</ul>
${left > 0 && html`<p class="small"><a href="${rest}">${isAlone ? 'Next' : 'Show all'}</a> (${left} more)</p>`}`,
      ] as const;
    });
  return new Map(contents);
}

function itemContent(
  { id, name, arguments: given, mode, expiresAt }: AgentSubscriptionOfAccount,
  kinds: readonly EventKind[],
  token: string,
  place: AccountPlace,
): Html {
  const what = kinds.find((kind) => kind.name === name)?.description ?? shortened(name, nameCharactersMax);
  const until = mode === 'webhook' ? html`Until ${time(expiresAt)}` : 'While it asks for them';
  return html`<li>${what}
${given !== '{}' && html`Only if ${conditionsContent(JSON.parse(given))}.`}
<form method="post" action="/account/stop">
<input type="hidden" name="${formTokenField}" value="${token}">
${placeFields(place)}<input type="hidden" name="subscription" value="${id}">
${until} · <button class="link" type="submit" aria-label="Stop: ${what}">Stop</button>
</form></li>`;
}

const limitWords: Readonly<Record<string, string>> = {
  $gt: 'is more than',
  $gte: 'is at least',
  $lt: 'is less than',
  $lte: 'is at most',
};

/** @param given the arguments of an event: a value, a list of values, or limits for each name (mcp/events/arguments.ts) */
function conditionsContent(given: Readonly<Record<string, unknown>>): Html[] {
  const conditions = Object.entries(given).flatMap(([name, value]) => {
    if (typeof value !== 'object' || value === null) return [[name, 'is', JSON.stringify(value)]];
    if (Array.isArray(value)) {
      const values = value.map((each) => JSON.stringify(each));
      return [[name, values.length > 1 ? 'is one of' : 'is', values.join(', ')]];
    }
    return Object.entries(value).map(([limit, bound]) => [
      name,
      limitWords[limit] ?? limit,
      JSON.stringify(bound),
    ]);
  });
  const shown = conditions.slice(0, conditionsMax).map(([name = '', words, value = '']) => {
    const bound = shortened(value, valueCharactersMax);
    return html`${shortened(name, nameCharactersMax)} ${words} <code>${bound}</code>`;
  });
  const left = conditions.length - shown.length;
  return [
    ...shown.map((each, index) => html`${index > 0 && ' and '}${each}`),
    ...(left > 0 ? [html` and ${left} more`] : []),
  ];
}

const timeFormat = new Intl.DateTimeFormat('en', {
  ...{ dateStyle: 'medium', timeStyle: 'short', timeZone: 'UTC', hourCycle: 'h23' },
});

function time(date: Date): Html {
  return html`<time datetime="${date.toISOString()}">${timeFormat.format(date)} UTC</time>`;
}
