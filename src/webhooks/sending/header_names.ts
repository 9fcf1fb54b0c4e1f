/** Names of the headers of a delivery, the operator's to set. */

export interface HeaderNames {
  event: string;
  delivery: string;
  signature: string;
  sequence: string;
  attempt: string;
  /** The id of the account that the event belongs to. */
  account: string;
  /** The application's own id of that account, percent-encoded. */
  accountExternalId: string;
}

export const defaultHeaderNames: HeaderNames = {
  event: 'Nuncio-Event',
  delivery: 'Nuncio-Delivery',
  signature: 'Nuncio-Signature',
  sequence: 'Nuncio-Sequence',
  attempt: 'Nuncio-Attempt',
  account: 'Nuncio-Account',
  accountExternalId: 'Nuncio-Account-External-Id',
};
