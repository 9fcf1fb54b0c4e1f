/** Who shares what a node has with others as one. */

export interface TenantParts {
  /** The account; null for what an app does for itself. */
  accountId: string | null;
  /** The account that created the app, if the app acts for itself; null if none did. */
  creatorId: string | null;
  clientId: string | null;
}

/**
 * The name of a tenant. Any account may create any number of apps in time, so those that act for themselves are one tenant: not that of the
 * account itself, which may have handed them over.
 */
export function tenantName({ accountId, creatorId, clientId }: TenantParts): string {
  return accountId ?? (creatorId === null ? `client:${clientId}` : `creator:${creatorId}`);
}
