/** The headers of a delivery: their names, and their values in any of the shapes that frameworks give them. */

type HeaderValue = string | number | readonly string[] | null | undefined;
type HeaderRecord = Readonly<Record<string, HeaderValue>>;

/**
 * Headers in the shape that a framework has them: a `Headers`, a `Map`, a list of pairs, an object with names in any case whose
 * values are texts or lists of texts, or an AWS Lambda event.
 */
export type DeliveryHeaders =
  | { readonly headers?: object | null | undefined; readonly multiValueHeaders?: object | null | undefined }
  | { entries(): Iterable<[string, string]> }
  | Iterable<readonly [string, HeaderValue]>
  | HeaderRecord;

/** The names of headers that an operator can change (`webhooks.headers` in `nuncio.config.ts`). `/meta` shows them as `headers`. */
export interface HeaderNames {
  event: string;
  delivery: string;
  signature: string;
  sequence: string;
  account: string;
}

export type HeaderPreset = 'nuncio' | 'github' | 'stripe';

const nuncio: HeaderNames = {
  event: 'Nuncio-Event',
  delivery: 'Nuncio-Delivery',
  signature: 'Nuncio-Signature',
  sequence: 'Nuncio-Sequence',
  account: 'Nuncio-Account',
};

const presets = new Map<unknown, Partial<HeaderNames>>([
  ['nuncio', {}],
  ['github', { event: 'X-GitHub-Event', delivery: 'X-GitHub-Delivery', signature: 'X-Hub-Signature-256' }],
  ['stripe', { signature: 'Stripe-Signature' }],
]);

/** @throws TypeError if there is no such preset */
export function namesOf(names: HeaderPreset | Partial<HeaderNames> = 'nuncio'): HeaderNames {
  const changed = typeof names === 'object' ? names : presets.get(names);
  if (changed === undefined) throw new TypeError('headerNames must be nuncio, github, stripe or an object');
  return { ...nuncio, ...changed };
}

/** Returns the value of a header, or undefined. Values of a repeated header are joined by a comma, as HTTP defines it. */
export type FindHeader = (name: string) => string | undefined;

export function headerFinder(headers: unknown): FindHeader {
  const pairs = pairsOf(headers);
  return (name) => {
    const wanted = name.toLowerCase();
    const values = pairs
      .filter(([key, value]) => value != null && String(key).toLowerCase() === wanted)
      .flatMap(([, value]) => value);
    return values.length === 0 ? undefined : values.join(', ');
  };
}

function pairsOf(headers: unknown): [unknown, unknown][] {
  if (typeof headers !== 'object' || headers === null) return [];
  if (Symbol.iterator in headers) return Array.from(headers as Iterable<[unknown, unknown]>);
  const { multiValueHeaders, headers: inner } = headers as Record<string, unknown>;
  // A Lambda event, or a request. The value of a header of this name would be a text.
  for (const nested of [multiValueHeaders, inner]) {
    if (typeof nested === 'object' && nested !== null && !Array.isArray(nested)) return pairsOf(nested);
  }
  return Object.entries(headers);
}
