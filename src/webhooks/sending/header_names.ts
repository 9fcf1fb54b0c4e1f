/** Names of the headers of a delivery, the operator's to set. */

export interface HeaderNames {
  event: string;
  delivery: string;
  signature: string;
  sequence: string;
  attempt: string;
}

export const defaultHeaderNames: HeaderNames = {
  event: 'Nuncio-Event',
  delivery: 'Nuncio-Delivery',
  signature: 'Nuncio-Signature',
  sequence: 'Nuncio-Sequence',
  attempt: 'Nuncio-Attempt',
};
