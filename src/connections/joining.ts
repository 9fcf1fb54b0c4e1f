/** Decides which connection each step belongs to. Pure, so that it can be tested without a server. */

import type { ConnectionOutcome, PendingStep, Step } from './step.ts';

/** A stored connection that may get further steps. */
export interface KnownConnection {
  id: string;
  clientId: string | null;
  outcome: ConnectionOutcome;
  keys: string[];
  /** Name, outcome and error of each step, separated by spaces. */
  stepsTaken: string[];
}

/** New steps of one connection. */
export interface JoinedSteps {
  id: string;
  clientId: string | null;
  isKnown: boolean;
  accountId: string | null;
  grantId: string | null;
  outcome: ConnectionOutcome;
  keys: string[];
  requestIds: string[];
  source: string;
  steps: Step[];
}

interface Draft {
  known: KnownConnection;
  joined: JoinedSteps | undefined;
  /** The lowest rank is that of the latest. */
  rank: number;
}

/** Drafts by their keys: a search of all of them for each step takes seconds when many apps connect at once. */
class Drafts {
  readonly all: Draft[] = [];
  readonly #byKey = new Map<string, Set<Draft>>();

  add(draft: Draft): void {
    this.all.push(draft);
    this.addKeys(draft, draft.known.keys);
  }

  addKeys(draft: Draft, keys: readonly string[]): void {
    for (const key of keys) {
      const drafts = this.#byKey.get(key);
      if (drafts === undefined) this.#byKey.set(key, new Set([draft]));
      else drafts.add(draft);
    }
  }

  /** The latest draft that the step belongs to. */
  find(step: PendingStep): Draft | undefined {
    let latest: Draft | undefined;
    for (const key of step.keys) {
      for (const draft of this.#byKey.get(key) ?? []) {
        if ((latest === undefined || draft.rank < latest.rank) && mayBelong(draft.known, step))
          latest = draft;
      }
    }
    return latest;
  }
}

/**
 * @param known the stored connections with a key of any of the steps, the latest first
 * @param pending steps in the order in which they were reported
 */
export function joinSteps(
  known: readonly KnownConnection[],
  pending: readonly PendingStep[],
  newId: () => string,
): JoinedSteps[] {
  const drafts = new Drafts();
  for (const [rank, connection] of known.entries()) {
    drafts.add({ known: connection, joined: undefined, rank });
  }
  for (const [index, step] of pending.entries()) {
    let draft = drafts.find(step);
    if (draft === undefined) {
      const begun = begin(step, newId);
      if (begun === undefined) continue;
      draft = { known: begun, joined: undefined, rank: -1 - index };
      drafts.add(draft);
    }
    append(draft, step);
    drafts.addKeys(draft, step.keys);
  }
  return drafts.all.flatMap(({ joined }) => (joined === undefined ? [] : [joined]));
}

/** Whether a step belongs to a connection with one of its keys. */
function mayBelong({ clientId, stepsTaken }: KnownConnection, step: PendingStep): boolean {
  // Someone else's code does not lead into that app's connection.
  if (clientId !== null && step.clientId !== null && clientId !== step.clientId) return false;
  return (
    step.belongsTo !== 'before-authorize' || !stepsTaken.some((taken) => /^(?:authorize|token) /.test(taken))
  );
}

function begin(step: PendingStep, newId: () => string): KnownConnection | undefined {
  if (step.belongsTo === 'existing') return undefined;
  const { clientId } = step;
  return { id: newId(), clientId, outcome: 'open', keys: [], stepsTaken: [] };
}

function append(draft: Draft, step: PendingStep): void {
  const { known } = draft;
  const taken = [step.name, step.outcome, step.error].filter((word) => word !== undefined).join(' ');
  if (step.belongsTo === 'existing' && known.stepsTaken.includes(taken)) return;
  known.stepsTaken.push(taken);
  known.clientId ??= step.clientId;
  known.keys = [...new Set([...known.keys, ...step.keys])];
  const { name, outcome, error = null, explanation = null, requestId, at, source } = step;
  draft.joined ??= {
    id: known.id,
    clientId: step.clientId,
    isKnown: step.isKnown,
    accountId: null,
    grantId: null,
    outcome: known.outcome,
    keys: [],
    requestIds: [],
    source,
    steps: [],
  };
  const { joined } = draft;
  joined.isKnown ||= step.isKnown;
  joined.accountId = step.accountId ?? joined.accountId;
  joined.grantId = step.grantId ?? joined.grantId;
  joined.keys = [...new Set([...joined.keys, ...step.keys])];
  joined.requestIds = [...new Set([...joined.requestIds, requestId])];
  joined.steps.push({
    name,
    at: new Date(at).toISOString(),
    outcome,
    error,
    explanation,
    request: requestId,
  });
  joined.outcome = outcomeAfter(joined.outcome, step);
}

function outcomeAfter(before: ConnectionOutcome, { name, outcome }: PendingStep): ConnectionOutcome {
  // A refused call or delivery does not undo a connection: the app has its token.
  if (name === 'call' || name === 'delivery')
    return outcome === 'ok' ? 'connected' : before === 'open' ? 'refused' : before;
  if (outcome === 'refused') return 'refused';
  return name === 'token' || before === 'connected' ? 'connected' : 'open';
}
