/** Events for agents: `events/list`, `events/poll`, `events/stream`, `events/subscribe` and `events/unsubscribe`. */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { ConnectionTraces } from '../../connections/traces.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import type { Guard, Principal } from '../../grants/principal.ts';
import { holderOf, type StreamSlots } from '../../http/stream_slots.ts';
import type { RpcRequest } from '../json_rpc.ts';
import { requireScope } from '../scope.ts';
import { reportFailedChallenge } from '../trace.ts';
import { EventErrors, refusedParams } from './errors.ts';
import { type FeedRequest, Feeds } from './feed.ts';
import { type AgentKind, agentKinds } from './kinds.ts';
import { listKinds } from './list.ts';
import { poll } from './poll.ts';
import { ResumeTurns } from './resume_turns.ts';
import { EventStreams } from './stream.ts';
import { Subscriber, type SubscriberOptions } from './subscribe.ts';
import { unsubscribe } from './unsubscribe.ts';

/** Maximum characters of the parameters as JSON. */
const paramsMax = 65_536;

export interface AgentEventOptions
  extends Omit<SubscriberOptions, 'kinds' | 'newestVersion' | 'errors' | 'turns'> {
  catalogue: Catalogue;
  /** Of open streams of events. */
  slots: StreamSlots;
  traces: ConnectionTraces;
}

/** A request for events, of a principal that the endpoint has authorized. */
export interface EventCall {
  message: RpcRequest;
  principal: Principal;
  request: FastifyRequest;
  guard: Guard;
}

export class AgentEvents {
  readonly #options: AgentEventOptions;
  readonly #kinds: ReadonlyMap<string, AgentKind>;
  readonly #errors: EventErrors;
  readonly #feeds: Feeds;
  readonly #subscriber: Subscriber;
  readonly #streams: EventStreams;

  constructor(options: AgentEventOptions) {
    const { catalogue, settings, slots } = options;
    this.#options = options;
    this.#kinds = agentKinds(catalogue);
    this.#errors = new EventErrors(settings.firstErrorCode);
    const shared = {
      ...options,
      kinds: this.#kinds,
      newestVersion: catalogue.newestVersion,
      errors: this.#errors,
      turns: new ResumeTurns(this.#errors),
    };
    this.#feeds = new Feeds(shared);
    this.#subscriber = new Subscriber(shared);
    this.#streams = new EventStreams(this.#feeds, slots);
  }

  /** The scopes that kinds need. */
  get scopes(): string[] {
    return [...this.#kinds.values()].flatMap(({ scope }) => (scope === null ? [] : [scope]));
  }

  list({ message, principal }: EventCall): Record<string, unknown> {
    return listKinds(this.#kinds, principal, message.params.cursor);
  }

  /** @throws RpcError, or Problem 403 if the token lacks the kind's scope */
  async poll(call: EventCall): Promise<Record<string, unknown>> {
    return poll(this.#feeds, await this.#readRequest(call), call.message.params);
  }

  /** @throws RpcError, or Problem 403 if the token lacks the kind's scope */
  async subscribe(call: EventCall): Promise<Record<string, unknown>> {
    const { request, principal, message } = call;
    return this.#subscriber.subscribe(await this.#readRequest(call), message.params, (failure) =>
      reportFailedChallenge(this.#options.traces, request, principal, failure),
    );
  }

  /** @throws RpcError */
  async unsubscribe({ message, principal: { grantId } }: EventCall): Promise<Record<string, unknown>> {
    const name = this.#readName(message);
    if (grantId !== null) await unsubscribe(this.#options.db, grantId, name, message.params);
    return {};
  }

  /** @throws RpcError or Problem before the stream begins */
  async stream(
    call: EventCall,
    reply: FastifyReply,
    complete: (result: Record<string, unknown>) => Record<string, unknown>,
  ): Promise<void> {
    const { message, principal, request, guard } = call;
    const wanted = await this.#readRequest(call);
    const { tokenId, clientId } = principal;
    const scopes = wanted.kind.scope === null ? [] : [wanted.kind.scope];
    await this.#streams.send(reply, {
      id: message.id ?? '',
      request: wanted,
      holder: holderOf({ tokenId, accountId: wanted.accountId, creatorId: null, clientId }),
      checkToken: () => guard(request, ...scopes),
      complete,
      log: request.log,
    });
  }

  async #readRequest({ message, principal, request, guard }: EventCall): Promise<FeedRequest> {
    const name = this.#readName(message);
    const kind = this.#kinds.get(name);
    if (kind === undefined) throw this.#errors.create('NotFound', { kind: 'event' });
    if (kind.scope !== null) await requireScope(guard, request, principal, kind.scope);
    return this.#feeds.readRequest(kind, principal, message.params);
  }

  #readName({ params }: RpcRequest): string {
    const { name } = params;
    if (name === undefined) throw refusedParams('name', 'required');
    if (typeof name !== 'string') throw refusedParams('name', 'invalid_type');
    if (JSON.stringify(params).length > paramsMax) throw refusedParams('params', 'too_large');
    return name;
  }
}
