/**
 * For whom a connection is used. Requests of one user share connections (fair_pool.ts). What many requests wait for, such as a batch
 * or a load of a cache, is work of the server: it must not wait for the share of the user whose request happened to begin it.
 */

import { AsyncLocalStorage } from 'node:async_hooks';
import type { TimeOwner } from '../shared/fair_time.ts';
import type { GroupMember } from '../shared/owner_turns.ts';

/**
 * What a connection is for, in the order in which some are kept free: sign-in and tokens, reads, and what can wait for rows that others have
 * locked: changes that end rights, and all others.
 */
export type Purpose = 'first' | 'read' | 'right' | 'change';

/**
 * The owner is an account, a client, or a network: the whole site of an IPv6 address. The part is an app of the account. Both are read only when
 * many connections are in use.
 */
export interface ConnectionUser extends GroupMember {
  readonly purpose: Purpose;
  /** Timers and other work that a request leaves behind are the server's. */
  readonly hasEnded: boolean;
  /** Of work in a turn. */
  readonly turn?: Turn;
}

interface Turn {
  /** Whose turn it is: a user without one. */
  readonly user: ConnectionUser;
  /** Who waits for the end of the turn. */
  readonly waiting: () => Iterable<TimeOwner>;
}

const users = new AsyncLocalStorage<ConnectionUser | undefined>();
/** What requests turned out to be for. */
const turnedOut = new WeakMap<ConnectionUser, Purpose>();

/** Undefined for work of the server. */
export function currentUser(): ConnectionUser | undefined {
  const user = users.getStore();
  return user?.hasEnded === true ? undefined : user;
}

/**
 * From now on the current request may wait for rows that others have locked. Call it before such statements where a request that goes
 * first changes what others change, too: the end of an app with very many grants locks all of them for as long as it takes.
 */
export function expectLocks(): void {
  turnOut('first', 'right');
}

/** The current request only reads, although its method does not say so. */
export function onlyRead(): void {
  turnOut('change', 'read');
}

function turnOut(from: Purpose, to: Purpose): void {
  const user = currentUser();
  if (user?.purpose === from) turnedOut.set(user, to);
}

export function purposeOf(user: ConnectionUser): Purpose {
  return turnedOut.get(user) ?? user.purpose;
}

export function asUser<Result>(user: ConnectionUser, work: () => Result): Result {
  return users.run(user, work);
}

/**
 * Works in a turn for the end of which others wait. So that it does not wait behind other work of its caller, for connections or for turns of another kind,
 * it counts as another user. In a pool by time, its time is the caller's, and it comes as early as anybody who waits for a turn of the kind would: whoever
 * holds what others need inherits their place. As work of the server, it would come before everybody and have no share.
 * @param kind what the turns are of
 * @param waiting who waits for a turn of the kind
 */
export async function inTurnOf<Result>(
  kind: string,
  waiting: () => Iterable<TimeOwner>,
  work: () => Promise<Result>,
): Promise<Result> {
  const user = currentUser();
  if (user === undefined) return work();
  const { owner, group, turn: outer } = user;
  const turn: Turn = {
    user: outer?.user ?? user,
    waiting: () => [...(outer?.waiting() ?? []), ...waiting()],
  };
  const inTurn = {
    owner: `turns of ${kind}: ${owner}`,
    part: null,
    group,
    purpose: purposeOf(user),
    hasEnded: false,
    turn,
  };
  try {
    return await asUser(inTurn, work);
  } finally {
    inTurn.hasEnded = true;
  }
}

export function asServer<Result>(work: () => Result): Result {
  // A new context costs more than to look at this one.
  return users.getStore() === undefined ? work() : users.run(undefined, work);
}
