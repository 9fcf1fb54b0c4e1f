/**
 * Protected resource metadata (RFC 9728): tells a client that received a 401 which authorization server issues tokens.
 */

/** `max-age` of the document, in seconds. */
const maxAgeSeconds = 300;

export interface ResourceMetadata {
  /** The path to serve it at, for example `/.well-known/oauth-protected-resource`. */
  readonly path: string;
  /** The absolute URL, as in `WWW-Authenticate`. */
  readonly url: string;
  readonly document: Readonly<Record<string, unknown>>;
  readonly headers: Readonly<Record<string, string>>;
}

export interface MetadataOptions {
  /** The resource identifier: the public URL of the API. */
  url: string;
  issuer: string;
  scopes: readonly string[];
  name: string | undefined;
  documentation: string | undefined;
}

export function createResourceMetadata(options: MetadataOptions): ResourceMetadata {
  const { origin, pathname } = new URL(options.url);
  // RFC 9728 section 3.1: the well-known path is inserted between host and path.
  const path = `/.well-known/oauth-protected-resource${pathname === '/' ? '' : pathname}`;
  return Object.freeze({
    path,
    url: origin + path,
    document: Object.freeze({
      resource: options.url,
      authorization_servers: [options.issuer],
      ...(options.scopes.length === 0 ? {} : { scopes_supported: [...options.scopes] }),
      bearer_methods_supported: ['header'],
      ...(options.name === undefined ? {} : { resource_name: options.name }),
      ...(options.documentation === undefined ? {} : { resource_documentation: options.documentation }),
    }),
    headers: Object.freeze({
      'content-type': 'application/json',
      'cache-control': `public, max-age=${maxAgeSeconds}`,
      // Apps in browsers read it from other origins. It contains public information only.
      'access-control-allow-origin': '*',
    }),
  });
}
