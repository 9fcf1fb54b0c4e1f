/** The headers of a delivery: their names, which the operator can set, their descriptions, and the names that others must not use. */

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

const descriptions: Readonly<Record<keyof HeaderNames, string>> = {
  event: 'The event’s kind.',
  delivery: 'The delivery’s id, the same at every attempt. Handle each id once.',
  signature: 'By the subscription’s `signature`: `t=<unix seconds>,v1=<hex>` or `sha256=<hex>`.',
  sequence: '1, 2, 3 … without a gap, for each subscription.',
  attempt: '1, 2, 3 …',
  account: 'The id of the account that the event belongs to. Absent if it belongs to none, such as `ping`.',
  accountExternalId:
    'The application’s own id of that account, if there is one, percent-encoded outside visible ASCII.',
};

/** The default names with their descriptions, for the reference. */
export const describedHeaders = Object.entries(descriptions).map(
  ([header, description]) => [defaultHeaderNames[header as keyof HeaderNames], description] as const,
);

/** Names with a meaning in HTTP or in Standard Webhooks, and those that announce the end of a version. */
const protocolNames = [
  ...['host', 'content-.*', 'connection', 'transfer-encoding', 'te', 'trailer', 'upgrade', 'expect'],
  ...['keep-alive', 'proxy-.*', 'user-agent', 'accept.*', 'date', 'cookie', 'webhook-.*'],
  ...['deprecation', 'sunset'],
];

/** Names that the operator cannot give to a header of deliveries. */
export const reservedForOperators = namesLike([...protocolNames, 'authorization']);

/** Names that a subscriber cannot give to a static header: also those with a meaning in proxies, tracing or signatures. */
export const reservedForSubscribers = namesLike([
  ...protocolNames,
  ...['via', 'forwarded', 'x-forwarded-.*', 'x-real-ip', 'cookie.*', 'set-cookie.*', 'origin', 'referer'],
  ...['range', 'if-.*', 'sec-.*', 'http2-.*', 'max-forwards', 'cache-control', 'pragma', 'age', 'warning'],
  ...['priority', 'early-data', 'alt-.*', 'traceparent', 'tracestate', 'baggage', 'digest', 'signature.*'],
  ...['nuncio-.*', 'dpop', 'x-http-method.*', 'x-method-override'],
]);

function namesLike(patterns: readonly string[]): RegExp {
  return new RegExp(`^(?:${patterns.join('|')})$`, 'i');
}
