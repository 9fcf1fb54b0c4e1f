/** Who a subscription belongs to. */

/** Whose subscription it is: what it gets, and who sees it. */
export type Owner =
  | ({ kind: 'grant'; grantId: string; accountId: string; clientId: string } & AppMember)
  | ({ kind: 'user'; accountId: string } & AppMember)
  | { kind: 'client'; clientId: string };

export interface AppMember {
  /** An account whose token is also good for the own subscriptions of apps that it is a member of. */
  memberId?: string | null;
}
