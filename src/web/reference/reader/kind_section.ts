/** The event kinds, as subscribers receive them. */

import { type Html, html } from '../../../http/html.ts';
import { codeBlock, colouredJson, prose } from './code.ts';
import type { ApiDocument, ShownOperation } from './document.ts';
import { sampleOf } from './sample.ts';
import { fieldHead, schemaFields } from './schema_fields.ts';

/** An element id that differs from those of operations. */
export function kindAnchor(kind: string): string {
  return `kind-${kind.replaceAll('.', '-')}`;
}

export function webhookSections(document: ApiDocument): Html {
  const kinds = Object.entries(document.webhooks);
  const [first] = kinds;
  return html`<section class="tag" id="webhooks" aria-labelledby="webhooks-title">
<h2 id="webhooks-title">Webhooks</h2>
<p>Each event is sent as a signed <code>POST</code> to every URL that is subscribed to its kind. The body is that of the event. Headers describe the delivery. Respond with any 2xx status within 15 seconds to accept a delivery. Everything else is retried for about three days.</p>
<h3>Headers of a delivery</h3>
${first === undefined ? null : headerList(document, first[1].post)}
${verification()}
${kinds.map(([kind, { post }]) => kindSection(document, kind, post))}
</section>`;
}

function headerList(document: ApiDocument, { parameters = [] }: ShownOperation): Html {
  return html`<ul class="fields">${parameters.map(
    ({ name, schema, description }) =>
      html`<li>${fieldHead(document, name, schema, false, description)}</li>`,
  )}</ul>`;
}

const libraryCode = `import { verify } from 'nuncio/verify';

// body: the bytes of the request, before any JSON parser
const { id, kind, account } = await verify({ headers, body, secret });`;

const verifyCode = `import { createHmac, timingSafeEqual } from 'node:crypto';

// body: the raw bytes, before any JSON parser
export function verify(body, header, secret, toleranceSeconds = 300) {
  const parts = header.split(',').map((part) => part.split('='));
  const time = parts.find(([name]) => name === 't')?.[1];
  if (Math.abs(Date.now() / 1000 - Number(time)) > toleranceSeconds) return false;
  const expected = createHmac('sha256', secret).update(time + '.').update(body).digest();
  return parts.some(([name, value]) => {
    const given = Buffer.from(name === 'v1' ? value : '', 'hex');
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}`;

function verification(): Html {
  return html`<section class="operation" id="verify" aria-labelledby="verify-title">
<div class="words">
<h3 id="verify-title"><a href="#verify">Verify a signature</a></h3>
<p>With the default <code>signature: "timestamp"</code>, <code>Nuncio-Signature</code> is <code>t=&lt;unix seconds&gt;,v1=&lt;hex&gt;</code>: the HMAC-SHA256 of the time, a dot and the body, keyed with the subscription’s secret as text. While a secret is being rotated there is one <code>v1</code> for each live secret. Stripe’s libraries verify this shape unchanged.</p>
<p>The package <code>nuncio</code> for JavaScript, and its counterparts for Python, Go and Java, verify every format.</p>
<p>A delivery can arrive more than once. Handle each <code>Nuncio-Delivery</code> once. <code>Nuncio-Account</code> says whose event it is.</p>
</div>
<div class="samples"><p class="sample-title">Node.js, with the package <code>nuncio</code></p>${codeBlock('Verification with the library', libraryCode)}
<p class="sample-title">Node.js, without a library</p>${codeBlock('Verification in Node.js', verifyCode)}</div>
</section>`;
}

function kindSection(document: ApiDocument, kind: string, operation: ShownOperation): Html {
  const media = operation.requestBody?.content['application/json'];
  if (media === undefined) return html``;
  const id = kindAnchor(kind);
  return html`<section class="operation" id="${id}" aria-labelledby="${id}-title">
<div class="words">
<h3 id="${id}-title"><a href="#${id}"><code>${kind}</code></a></h3>
<p>${prose(operation.summary ?? '')}</p>
<p class="scopes">${prose(operation.description ?? '')}</p>
${schemaFields(document, media.schema)}
</div>
<div class="samples"><p class="sample-title">Body</p>${codeBlock(
    `Body of ${kind}`,
    colouredJson(media.example ?? sampleOf(document, media.schema)),
  )}</div>
</section>`;
}
