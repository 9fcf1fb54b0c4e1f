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
  const drafts: Draft[] = known.map((connection) => ({ known: connection, joined: undefined }));
  for (const step of pending) {
    const draft = drafts.find((candidate) => belongs(candidate.known, step)) ?? begin(step, newId);
    if (draft === undefined) continue;
    // The latest come first.
    if (!drafts.includes(draft)) drafts.unshift(draft);
    append(draft, step);
  }
  return drafts.flatMap(({ joined }) => (joined === undefined ? [] : [joined]));
}

function belongs({ clientId, keys, stepsTaken }: KnownConnection, step: PendingStep): boolean {
  if (!step.keys.some((key) => keys.includes(key))) return false;
  // Someone else's code does not lead into that app's connection.
  if (clientId !== null && step.clientId !== null && clientId !== step.clientId) return false;
  return (
    step.belongsTo !== 'before-authorize' || !stepsTaken.some((taken) => /^(?:authorize|token) /.test(taken))
  );
}

function begin(step: PendingStep, newId: () => string): Draft | undefined {
  if (step.belongsTo === 'existing') return undefined;
  const { clientId } = step;
  return { known: { id: newId(), clientId, outcome: 'open', keys: [], stepsTaken: [] }, joined: undefined };
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
