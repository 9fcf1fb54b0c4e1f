/** The guide: what applies to every operation. */

import { type Html, html } from '../../../http/html.ts';
import { codeBlock } from './code.ts';

/** The sections of the guide, for the navigation. */
export const guideSections: readonly (readonly [id: string, title: string])[] = [
  ['authentication', 'Authentication'],
  ['errors', 'Errors'],
  ['paging', 'Paging'],
  ['retries', 'Safe retries'],
];

const problem = `{
  "type": "about:blank",
  "title": "Unprocessable Content",
  "status": 422,
  "detail": "The body is not valid.",
  "instance": "urn:uuid:01981f6e-7c5a-7d3e-9f21-3b8a5d0c6e11",
  "errors": [{ "pointer": "/title", "message": "must not be empty" }]
}`;

export function guide(baseUrl: string): Html {
  return html`<section class="operation" id="authentication" aria-labelledby="authentication-title">
<div class="words">
<h3 id="authentication-title"><a href="#authentication">Authentication</a></h3>
<p>Every request carries an access token: <code>Authorization: Bearer …</code>. An app, created in <a href="/console/apps">the console</a>, gets a token for a user with the authorization code flow and PKCE, or for itself with client credentials. A token is valid for 15 minutes; a refresh token gets the next one.</p>
<p>A scope names an action and an object, such as <code>read:posts</code>. Writing does not include reading. Users see the scopes that an app requests, and can disconnect it in <a href="/account">their account</a>.</p>
<p>OAuth libraries configure themselves from <a href="/.well-known/oauth-authorization-server">the metadata</a>.</p>
</div>
<div class="samples"><p class="sample-title">Client credentials</p>${codeBlock(
    'A token by client credentials',
    `curl -X POST '${baseUrl}/oauth/token' \\
  -u "$CLIENT_ID:$CLIENT_SECRET" \\
  -d grant_type=client_credentials`,
  )}</div>
</section>
<section class="operation" id="errors" aria-labelledby="errors-title">
<div class="words">
<h3 id="errors-title"><a href="#errors">Errors</a></h3>
<p>Errors are <code>application/problem+json</code> (RFC 9457). <code>errors</code> lists each error in the body with a JSON pointer. <code>instance</code> identifies the request: quote it when you ask for help.</p>
</div>
<div class="samples"><p class="sample-title">Response 422</p>${codeBlock('An error', problem)}</div>
</section>
<section class="operation" id="paging" aria-labelledby="paging-title">
<div class="words">
<h3 id="paging-title"><a href="#paging">Paging</a></h3>
<p>Lists return up to <code>limit</code> items. The path of the next page is in <code>_links.next</code> and in the <code>Link</code> header; its cursor is opaque. New items never shift a page.</p>
</div>
<div class="samples">${codeBlock('Links of a page', '"_links": {\n  "self": { "href": "/articles?limit=50" },\n  "next": { "href": "/articles?limit=50&after=…" }\n}')}</div>
</section>
<section class="operation" id="retries" aria-labelledby="retries-title">
<div class="words">
<h3 id="retries-title"><a href="#retries">Safe retries</a></h3>
<p>Send an <code>Idempotency-Key</code> with a <code>POST</code>. The same key with the same body returns the first response again for 24 hours, so a request whose response was lost can be retried.</p>
<p>Conditional requests protect changes: send the <code>ETag</code> that you read as <code>If-Match</code>, and a change in between is 412.</p>
</div>
<div class="samples">${codeBlock(
    'A request with a key',
    `curl -X POST '${baseUrl}/events' \\
  -H "Authorization: Bearer $TOKEN" \\
  -H "Idempotency-Key: $(uuidgen)" …`,
  )}</div>
</section>`;
}
