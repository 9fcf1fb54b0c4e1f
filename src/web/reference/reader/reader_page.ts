/**
 * The reference page, rendered once from the OpenAPI document and complete without JavaScript. The script adds search, copy
 * buttons and sending requests.
 */

import { type Html, html } from '../../../http/html.ts';
import { prose } from './code.ts';
import { type ApiDocument, operationsByTag } from './document.ts';
import { guide, guideSections } from './guide.ts';
import { kindAnchor, webhookSections } from './kind_section.ts';
import { operationSection } from './operation_section.ts';

export interface ReaderOptions {
  document: ApiDocument;
  /** The operator's brand. */
  head: Html;
  /** The page's OAuth client, to sign readers in. */
  signIn: { clientId: string; redirectUri: string };
}

export function readerPage({ document, signIn, head }: ReaderOptions): string {
  const { info, tags, servers } = document;
  const baseUrl = servers[0]?.url ?? '';
  const operations = operationsByTag(document);
  const kinds = Object.keys(document.webhooks);
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="Reference of the ${info.title} API and of its webhooks.">
<title>${info.title} API reference</title>
<link rel="stylesheet" href="reader.css">
${head}
</head>
<body>
<a class="skip" href="#content">Skip to content</a>
<header>
<p class="brand"><a href="/">${info.title}</a> <span>API reference</span></p>
<p id="sign-in-problem" role="status"></p>
<button id="sign-in" type="button" hidden data-client="${signIn.clientId}" data-redirect="${signIn.redirectUri}" data-authorize="${baseUrl}/oauth/authorize" data-token="${baseUrl}/oauth/token">Sign in</button>
</header>
<div class="columns">
<nav aria-label="Reference">
<details id="contents"><summary>Contents</summary>
<label class="search" hidden>Search<input id="search" type="search" placeholder="Search operations and events" autocomplete="off"></label>
<h2>Start here</h2>
<ul>${guideSections.map(([id, title]) => html`<li><a href="#${id}">${title}</a></li>`)}</ul>
${tags.map(
  ({ name }) => html`<h2>${title(name)}</h2>
<ul>${operations
    .get(name)
    ?.map(
      ({ operationId, method, path, summary }) =>
        html`<li data-words="${method} ${path}"><a href="#${operationId}"><span class="method ${method}" aria-hidden="true">${shortMethod(method)}</span>${summary}</a></li>`,
    )}</ul>`,
)}
<h2>Webhooks</h2>
<ul><li><a href="#webhooks">Headers of a delivery</a></li><li><a href="#verify">Verify a signature</a></li>${kinds.map(
    (kind) => html`<li><a href="#${kindAnchor(kind)}"><code>${kind}</code></a></li>`,
  )}</ul>
<p id="nothing-found" hidden>Nothing found.</p>
</details>
</nav>
<main id="content">
<section class="tag" aria-labelledby="top">
<h1 id="top">${info.title} API</h1>
<p class="lead">Version ${info.version}. The base URL is <code>${baseUrl}</code>. For tools: <a href="/openapi.json">OpenAPI 3.1</a> and <a href="/asyncapi.json">AsyncAPI 3</a>.</p>
<h2>Start here</h2>
${guide(baseUrl)}
</section>
${tags.map(
  ({ name, description }) => html`<section class="tag" id="tag-${name}" aria-labelledby="tag-${name}-title">
<h2 id="tag-${name}-title">${title(name)}</h2>
<p>${prose(description)}</p>
${operations.get(name)?.map((operation) => operationSection(document, operation))}
</section>`,
)}
${webhookSections(document)}
</main>
</div>
<script src="reader.js" type="module"></script>
</body>
</html>
`.toString();
}

function title(tag: string): string {
  return tag === 'api' ? 'API root' : tag.charAt(0).toUpperCase() + tag.slice(1).replaceAll('-', ' ');
}

function shortMethod(method: string): string {
  return method === 'delete' ? 'DEL' : method.toUpperCase();
}
