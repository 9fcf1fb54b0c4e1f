/**
 * Tells agents about their subscriptions: that one was ended (`terminated`), and that events were lost (`gap`). These messages are no
 * deliveries: they have no sequence and no log.
 *
 *   revoked, or its kind removed → claimed, which erases the secret → one attempt, whatever its result
 *   events lost → claimed → one attempt → accepted | claimed again after ten minutes, while the subscription lives
 */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import { countNonempty } from '../../database/hints.ts';
import type { Notifications } from '../../database/notifications.ts';
import type { AgentCursors } from '../subscriptions/agent_cursor.ts';
import { openSecrets, type SecretRow, type Secrets } from '../subscriptions/subscription_secrets.ts';
import { type AgentMessageSettings, type ControlType, controlId, signedAgentLines } from './agent_message.ts';
import { policyOf } from './delivery_policy.ts';
import type { ExchangeResult } from './exchange.ts';
import { createSigningKeys } from './secret_keys.ts';
import type { Sender } from './sender.ts';

/** Messages in flight on this node, and of one account, whose callbacks may never respond. */
const inFlightMax = 100;
const inFlightOfAccountMax = 2;
/** Maximum rows among which the accounts take turns. */
const searchedMax = 2_000;
/** Milliseconds between two searches without a notification. */
const searchMs = 5_000;
/** Minutes after which a gap is told again that the agent did not accept. */
const gapPauseMinutes = 10;

/** Whether the subscription of a row is active, and so is its app. */
const isSent = sql`exists (
  select from subscriptions s join clients c on c.id = s.client_id
  where s.id = agent_subscriptions.id and s.state = 'active' and not c.is_stopped)`;

export interface AgentControlOptions {
  db: Database;
  /** Not started yet: the constructor adds a listener. */
  notifications: Notifications;
  sender: Sender;
  sealer: Sealer;
  cursors: AgentCursors;
  codeOf: AgentMessageSettings['codeOf'];
  onError: (error: Error) => void;
}

interface Message {
  id: string;
  accountId: string;
  key: string;
  url: string;
  type: Exclude<ControlType, 'verification'>;
  /** The sealed secret that the claim erased; null if it erased none. */
  erased: Buffer | null;
  secrets: Secrets;
  body: object;
}

export class AgentControl {
  readonly #options: AgentControlOptions;
  #timer: NodeJS.Timeout | undefined;
  #searching: Promise<void> | undefined;
  readonly #sending = new Set<Promise<void>>();
  /** The accounts of the messages in flight, each as often as it has some. */
  readonly #accounts: string[] = [];
  /** Whether to search again after the running search. */
  #isAsked = false;
  #isStopping = false;

  constructor(options: AgentControlOptions) {
    this.#options = options;
    for (const channel of ['agent_ended', 'agent_gap']) {
      options.notifications.listen(channel, {
        onHints: (hints) => {
          this.#search();
          return countNonempty(hints);
        },
        onListening: () => this.#search(),
      });
    }
  }

  start(): void {
    this.#timer = setInterval(() => this.#search(), searchMs);
    this.#search();
  }

  /** Waits for messages in flight. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    clearInterval(this.#timer);
    await this.#searching;
    await Promise.all(this.#sending);
  }

  #search(): void {
    this.#isAsked = true;
    if (this.#timer === undefined) return;
    this.#searching ??= this.#claimAll()
      .catch(this.#options.onError)
      .finally(() => {
        this.#searching = undefined;
      });
  }

  async #claimAll(): Promise<void> {
    while (this.#isAsked && !this.#isStopping) {
      this.#isAsked = false;
      for (const message of await this.#claimTerminated()) this.#begin(message);
      for (const message of await this.#claimGaps()) this.#begin(message);
    }
  }

  /** Each end makes room, so it searches for what had to wait. */
  #begin(message: Message): void {
    const { accountId } = message;
    this.#accounts.push(accountId);
    const sending = this.#send(message)
      .catch(this.#options.onError)
      .finally(() => {
        this.#accounts.splice(this.#accounts.indexOf(accountId), 1);
        this.#sending.delete(sending);
        this.#search();
      });
    this.#sending.add(sending);
  }

  /** The subscriptions to claim: accounts take turns, and each has a share, which it gets again when all of that is done. */
  #candidates(due: ReturnType<typeof sql>, since: ReturnType<typeof sql>) {
    const busy = [...new Set(this.#accounts)];
    return sql`
      candidate as materialized (
        select id from (
          select id, row_number() over (partition by account_id order by since, id) as turn from (
            select id, account_id, ${since} as since from agent_subscriptions
            where ${due} and account_id <> all(${busy}::uuid[]) order by ${since} limit ${searchedMax}::int
          ) as searched
        ) as ranked
        where turn <= ${inFlightOfAccountMax}::int order by turn, id
        limit ${inFlightMax - this.#accounts.length}::int
      )`;
  }

  /** Erases the secret in the same statement, so that no agent is told twice. */
  async #claimTerminated(): Promise<Message[]> {
    const { db, codeOf } = this.#options;
    const { rows } = await sql<{
      id: string;
      accountId: string;
      key: string;
      url: string;
      secret: Buffer;
      is_late: boolean;
      is_removed: boolean;
    }>`
      with ${this.#candidates(sql`last_secret is not null`, sql`ended_at`)},
      claimed as materialized (
        select a.id, a.last_secret as secret, s.url, a.expires_at <= now() as is_late
        from candidate join agent_subscriptions a on a.id = candidate.id join subscriptions s on s.id = a.id
        where a.last_secret is not null for update of a skip locked
      )
      update agent_subscriptions a set last_secret = null from claimed
      where a.id = claimed.id
      returning a.id, a.account_id as "accountId", a.key, claimed.url, claimed.secret, claimed.is_late,
        a.end_reason = 'removed' as is_removed`.execute(db);
    const revoked = { code: codeOf.Forbidden, message: 'Forbidden', data: { reason: 'access_revoked' } };
    const removed = { code: codeOf.NotFound, message: 'NotFound', data: { kind: 'event' } };
    return rows.flatMap(({ secret, is_late: isLate, is_removed: isRemoved, ...row }) => {
      const none = { previous_secret: null, previous_secret_until: null };
      const secrets = isLate ? null : this.#open({ id: row.id, secret, ...none });
      return secrets === null
        ? []
        : [
            {
              ...row,
              secrets,
              erased: secret,
              type: 'terminated' as const,
              body: { type: 'terminated', error: isRemoved ? removed : revoked },
            },
          ];
    });
  }

  async #claimGaps(): Promise<Message[]> {
    const { db, cursors } = this.#options;
    const { rows } = await sql<
      SecretRow & {
        key: string;
        url: string;
        account_id: string;
        grant_id: string;
        name: string;
        arguments: string;
        lane: string;
        head: string;
        at: Date;
      }
    >`
      with ${this.#candidates(sql`gap_at <= now() and ended_at is null and expires_at > now() and held_at is null and ${isSent}`, sql`gap_at`)},
      claimed as materialized (
        select a.id, s.url, s.secret, s.previous_secret, s.previous_secret_until, newest_sequence(l) as head
        from candidate join agent_subscriptions a on a.id = candidate.id join subscriptions s on s.id = a.id
          join lanes l on l.id = a.lane
        where a.gap_at <= now() and a.ended_at is null and s.state = 'active' for update of a skip locked
      )
      update agent_subscriptions a set gap_at = now() + make_interval(mins => ${gapPauseMinutes}::int) from claimed
      where a.id = claimed.id
      returning claimed.*, a.key, a.account_id, a.grant_id, a.name, a.arguments, a.lane, now() as at`.execute(
      db,
    );
    return rows.flatMap((row) => {
      const secrets = this.#open(row);
      if (secrets === null) return [];
      const { id, key, url, account_id: accountId, grant_id: grantId, name, at } = row;
      const place = { lane: Number(row.lane), sequence: Number(row.head), at };
      const cursor = cursors.write({ grantId, name, arguments: row.arguments }, place);
      return [
        {
          id,
          accountId,
          key,
          url,
          secrets,
          erased: null,
          type: 'gap' as const,
          body: { type: 'gap', cursor },
        },
      ];
    });
  }

  /** Null if the secret cannot be opened. Other messages are not affected. */
  #open(row: SecretRow): Secrets | null {
    try {
      return openSecrets(row, this.#options.sealer);
    } catch (cause) {
      this.#options.onError(new Error(`the secret of subscription ${row.id} cannot be opened`, { cause }));
      return null;
    }
  }

  async #send({ id, accountId, key, url, type, erased, secrets, body: content }: Message): Promise<void> {
    const { sender, db } = this.#options;
    const body = Buffer.from(JSON.stringify(content));
    const keys = createSigningKeys(secrets, 'standard');
    const headers = signedAgentLines(key, keys, { id: controlId(type), body, now: Date.now() });
    const { origin, pathname, search } = new URL(url);
    const request = { origin, path: pathname + search, headers, body, traced: null, tenant: accountId };
    const { promise, resolve } = Promise.withResolvers<ExchangeResult>();
    sender.send(request, resolve, undefined, { timeoutMs: policyOf('agent').timeoutMs });
    const { status, error, isCancelled } = await promise;
    const isAccepted = error === null && status !== null && Math.floor(status / 100) === 2;
    // Nothing was sent, because this node may be cut off from the database.
    if (isCancelled && erased !== null)
      await sql`update agent_subscriptions set last_secret = ${erased} where id = ${id}`.execute(db);
    if (type === 'gap' && isAccepted)
      await sql`update agent_subscriptions set gap_at = null where id = ${id}`.execute(db);
  }
}
