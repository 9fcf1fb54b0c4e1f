/** The steps of a connection: what a request reports, and what is stored of it. */

import { hash } from 'node:crypto';

/** In the order in which an app takes them. `delivery` is read from the delivery log, or a challenge that a callback did not echo. */
export const stepNames = [
  'discovery',
  'registration',
  'client-document',
  'authorize',
  'sign-in',
  'consent',
  'code',
  'token',
  'call',
  'delivery',
] as const;
export type StepName = (typeof stepNames)[number];

export const stepOutcomes = ['ok', 'refused'] as const;
export type StepOutcome = (typeof stepOutcomes)[number];

export const connectionOutcomes = ['open', 'connected', 'refused'] as const;
/** `open`: not finished. `connected`: got a token. `refused`: the last step was refused. */
export type ConnectionOutcome = (typeof connectionOutcomes)[number];

/** A step as it is stored and shown. */
export interface Step {
  name: StepName;
  /** ISO 8601. */
  at: string;
  outcome: StepOutcome;
  /** Error code of the protocol; null if the step succeeded. */
  error: string | null;
  /** What was sent, what was expected and what to do; or a note about a step that succeeded. */
  explanation: string | null;
  /** Id of the request, which error pages and the log show. Null for a delivery. */
  request: string | null;
}

/** A step as a request reports it. */
export interface Observation {
  name: StepName;
  outcome: StepOutcome;
  error?: string | undefined;
  explanation?: string | undefined;
  requestId: string;
  clientId: string | null;
  /** Whether `clientId` is a registered app. */
  isKnown: boolean;
  /**
   * Whether the app has proven who it is, by its credentials, a code or a token, or the user by a session. Everything else anyone can
   * send with the public id of an app.
   */
  isAuthenticated: boolean;
  /** The user who is signed in. */
  accountId?: string | null | undefined;
  grantId?: string | null | undefined;
  /** The sender's address. It is not stored. */
  address: string;
  /** What other requests of this attempt have in common with this one (`stepKey`). */
  keys: readonly string[];
  /**
   * Which connections the step may belong to. `new-or-known` (default): one with a common key, or else a new one. `before-authorize`:
   * one with a common key that has no authorization request yet, or else a new one. `existing`: never a new one, and at most one step
   * of this name, outcome and error.
   */
  belongsTo?: 'new-or-known' | 'before-authorize' | 'existing';
}

/** A reported step, with its time in milliseconds and the digest of its sender. */
export type PendingStep = Observation & { at: number; source: string };

/** Length of a stored digest in characters, 132 bits. */
const keyLength = 22;

/** Digest of what requests of one attempt have in common. The value may be a secret. */
export function stepKey(
  kind:
    | 'interaction'
    | 'code'
    | 'device'
    | 'pushed'
    | 'grant'
    | 'registered'
    | 'machine'
    | 'request'
    | 'limited',
  value: string,
): string {
  return hash('sha256', `connection ${kind} ${value}`, 'base64url').slice(0, keyLength);
}
