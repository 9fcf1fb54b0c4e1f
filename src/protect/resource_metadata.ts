/**
 * Protected resource metadata (RFC 9728): where a client that meets a bare 401 learns whom to ask for a token.
 */

/** Seconds that the document may be kept. */
const maxAgeSeconds = 300;

export interface ResourceMetadata {
  /** Where it must be served, like `/.well-known/oauth-protected-resource`. */
  readonly path: string;
  /** The whole address, as `WWW-Authenticate` names it. */
  readonly url: string;
  readonly document: Readonly<Record<string, unknown>>;
  readonly headers: Readonly<Record<string, string>>;
}

export interface MetadataOptions {
  /** The resource's identifier: its public URL. */
  url: string;
  issuer: string;
  scopes: readonly string[];
  name: string | undefined;
  documentation: string | undefined;
}

export function createResourceMetadata(options: MetadataOptions): ResourceMetadata {
  const { origin, pathname } = new URL(options.url);
  // RFC 9728 section 3.1: the well-known part goes between host and path.
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
      // Apps in a browser read it too; there is nothing in it but what everybody may know.
      'access-control-allow-origin': '*',
    }),
  });
}
