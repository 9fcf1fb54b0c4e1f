/** What agents are told of, on the account page: each subscription of an app that an agent made, until when it lasts, and how to stop it. */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { isId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import type { EventKind } from '../events/kind.ts';
import { withDeliveryHold } from '../grants/delivery_hold.ts';
import { type Html, html } from '../http/html.ts';
import {
  type AgentSubscriptionOfAccount,
  listAgentSubscriptions,
} from '../webhooks/subscriptions/agent_subscription.ts';
import { actAsOwner, endSubscription } from '../webhooks/subscriptions/subscription.ts';
import { type FormTokens, formTokenField } from './form_token.ts';

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
    return reply.header('cache-control', 'no-store').redirect('/account', 303);
  });
}

async function stop(db: Database, accountId: string, id: string): Promise<void> {
  const found = (await listAgentSubscriptions(db, accountId)).find((each) => each.id === id);
  if (found === undefined) return;
  const owner = { kind: 'user', accountId } as const;
  await withDeliveryHold(db, { clientId: null, accountId: null, lane: found.lane }, async (tx) => {
    await actAsOwner(tx, owner);
    await endSubscription(tx, owner, id);
  });
}

/** What each app is told of, by client. Apps that are told of nothing have no entry. */
export async function agentSubscriptionsContents(
  db: Database,
  accountId: string,
  kinds: readonly EventKind[],
  token: string,
): Promise<ReadonlyMap<string, Html>> {
  const all = await listAgentSubscriptions(db, accountId);
  const contents = Map.groupBy(all, ({ clientId }) => clientId)
    .entries()
    .map(([clientId, own]) => {
      const items = own.map((each) => itemContent(each, kinds, token));
      return [
        clientId,
        html`<p class="small">It is told when:</p><ul class="may small">${items}</ul>`,
      ] as const;
    });
  return new Map(contents);
}

function itemContent(
  { id, name, arguments: given, mode, expiresAt }: AgentSubscriptionOfAccount,
  kinds: readonly EventKind[],
  token: string,
): Html {
  const what = kinds.find((kind) => kind.name === name)?.description ?? name;
  const until = mode === 'webhook' ? html`Until ${time(expiresAt)}` : 'While it asks for them';
  return html`<li>${what}
${given !== '{}' && html`Only if ${conditionsContent(JSON.parse(given))}.`}
<form method="post" action="/account/stop">
<input type="hidden" name="${formTokenField}" value="${token}">
<input type="hidden" name="subscription" value="${id}">
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
  return conditions.map(
    ([name, words, value], index) => html`${index > 0 && ' and '}${name} ${words} <code>${value}</code>`,
  );
}

const timeFormat = new Intl.DateTimeFormat('en', {
  ...{ dateStyle: 'medium', timeStyle: 'short', timeZone: 'UTC', hourCycle: 'h23' },
});

function time(date: Date): Html {
  return html`<time datetime="${date.toISOString()}">${timeFormat.format(date)} UTC</time>`;
}
