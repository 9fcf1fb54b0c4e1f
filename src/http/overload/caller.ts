/** Who sends requests. */

export interface Caller {
  /** Account, client or network. */
  owner: string;
  /** The app of the account, or the site of the network; null if there is none. */
  group: string | null;
}
