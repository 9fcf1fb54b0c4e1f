/** Who a request speaks for, without the types of the server: operators' tools import it as well. */

declare const checked: unique symbol;

/** The brand ensures that only the guard can create a principal. */
export interface Principal {
  readonly [checked]: true;
  /** The user; null if the client speaks for itself (client credentials). */
  readonly accountId: string | null;
  /** The application's own id of the user; null if the account has none, and in tokens for other APIs. */
  readonly externalId: string | null;
  readonly clientId: string;
  /** The account that created the client, if the client speaks for itself; otherwise null, and for clients of the operator. */
  readonly creatorId: string | null;
  /** The grant that issued the token; null for client credentials. */
  readonly grantId: string | null;
  readonly scopes: ReadonlySet<string>;
  /** The access token's `jti`. */
  readonly tokenId: string;
}
