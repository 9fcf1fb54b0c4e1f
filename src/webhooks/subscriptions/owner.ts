/** The owner of a subscription. */

/** Decides which events a subscription gets and who can see it. */
export type Owner =
  | ({ kind: 'grant'; grantId: string; accountId: string; clientId: string } & AppMember)
  | ({ kind: 'user'; accountId: string /** The console's. */; grantId?: string | null } & AppMember)
  | { kind: 'client'; clientId: string };

export interface AppMember {
  /** The account's token also covers the own subscriptions of apps that the account is a member of. */
  memberId?: string | null;
}
