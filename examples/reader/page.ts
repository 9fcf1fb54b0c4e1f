/**
 * The app's page.
 */

import type { Article } from './api.ts';
import type { Received } from './inbox.ts';

export interface ConnectedView {
  accountId: string;
  articles: Article[];
  received: readonly Received[];
}

const style = `
:root { color-scheme: light dark; --line: light-dark(#d9dee5, #333b47); --soft: light-dark(#5b6673, #9aa6b5);
  --paper: light-dark(#fff, #161b22); --ground: light-dark(#f5f7f9, #0d1117); --accent: #2463d6; --good: light-dark(#12733c, #55c884); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
header { display: flex; align-items: baseline; gap: 1rem; flex-wrap: wrap; margin-bottom: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0 0 .75rem; }
header p { margin: 0; color: var(--soft); flex: 1; }
.columns { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); align-items: start; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: .75rem; padding: 1.25rem; }
button, .button { font: inherit; font-weight: 600; border: 0; border-radius: .5rem; padding: .55rem 1rem; background: var(--accent); color: #fff; cursor: pointer; text-decoration: none; display: inline-block; }
button.quiet { background: none; color: inherit; border: 1px solid var(--line); font-weight: 400; }
label { display: block; margin-bottom: .75rem; } label span { display: block; font-size: .9rem; color: var(--soft); }
input, textarea { width: 100%; font: inherit; padding: .5rem .6rem; border: 1px solid var(--line); border-radius: .5rem; background: transparent; color: inherit; }
ul { list-style: none; margin: 0 0 1.25rem; padding: 0; } li { border-top: 1px solid var(--line); padding: .7rem 0; }
li.article { display: flex; gap: .75rem; align-items: center; } li.article strong { flex: 1; overflow-wrap: anywhere; }
.state, .meta { color: var(--soft); font-size: .875rem; } .verified { color: var(--good); }
pre { margin: .5rem 0 0; padding: .6rem; overflow-x: auto; font-size: .8rem; background: var(--ground); border-radius: .5rem; }
.empty { color: var(--soft); } code { font-size: .95em; }
@keyframes arrive { from { background: color-mix(in srgb, var(--good) 22%, transparent); } } li.new { animation: arrive 2.5s; }
@media (prefers-reduced-motion: reduce) { li.new { animation: none; } }
`;

const script = `
const list = document.querySelector('#deliveries');
new EventSource('/stream').addEventListener('delivery', (event) => {
  document.querySelector('#none')?.remove();
  const holder = document.createElement('template');
  holder.innerHTML = JSON.parse(event.data);
  holder.content.firstElementChild.classList.add('new');
  list.prepend(holder.content);
});
document.addEventListener('submit', async (event) => {
  const form = event.target;
  if (!form.action.includes('/articles')) return;
  event.preventDefault();
  await fetch(form.action, { method: 'POST', body: new URLSearchParams(new FormData(form)) });
  const page = new DOMParser().parseFromString(await (await fetch('/')).text(), 'text/html');
  document.querySelector('#articles').replaceWith(page.querySelector('#articles'));
});
`;

/** Before the user has connected. */
export function welcomePage(baseUrl: string, message: string | undefined): string {
  return page(`
    <header><h1>Reader</h1><p>A small app connected to your account on ${escapeHtml(baseUrl)}.</p></header>
    <section>
      ${message === undefined ? '' : `<p role="alert"><strong>${escapeHtml(message)}</strong></p>`}
      <h2>Connect your account</h2>
      <p>Reader will read and publish your articles, and receive a signed webhook when one of them changes. You confirm
        this on a page of the server. Reader never sees your password.</p>
      <p><a class="button" href="/connect">Connect</a></p>
      <p class="meta">Demo login: <code>demo@example.com</code>, password <code>demo-password</code>.</p>
    </section>`);
}

/** After the user has connected. */
export function connectedPage(view: ConnectedView): string {
  return page(
    `
    <header><h1>Reader</h1><p>Connected for account <code>${escapeHtml(view.accountId)}</code></p>
      <form method="post" action="/disconnect"><button class="quiet">Disconnect</button></form></header>
    <div class="columns">
      <section>
        <h2>Your articles</h2>
        <ul id="articles">${view.articles.map(articleItem).join('') || '<li class="empty">No articles yet.</li>'}</ul>
        <h2>Write an article</h2>
        <form method="post" action="/articles">
          <label><span>Title</span><input name="title" required maxlength="200" value="What the envoy brought"></label>
          <label><span>Text</span><textarea name="body" rows="3">It came signed.</textarea></label>
          <button>Save as a draft</button>
        </form>
      </section>
      <section aria-live="polite">
        <h2>Received deliveries</h2>
        <ul id="deliveries">${view.received.map(deliveryItem).join('') || '<li class="empty" id="none">No deliveries yet. Save or publish an article to receive one.</li>'}</ul>
      </section>
    </div>`,
    script,
  );
}

function articleItem(article: Article): string {
  const action =
    article._links.publish === undefined
      ? `<span class="state">published</span>`
      : `<span class="state">draft</span><form method="post" action="/articles/${escapeHtml(article.id)}/publish"><button>Publish</button></form>`;
  return `<li class="article"><strong>${escapeHtml(article.title)}</strong>${action}</li>`;
}

/** One delivery, as shown and as streamed. */
export function deliveryItem(delivery: Received): string {
  return `<li>
    <strong>${escapeHtml(delivery.kind)}</strong> <span class="verified">✓ signature verified by <code>${escapeHtml(delivery.library)}</code></span>
    <div class="meta">no. ${delivery.sequence}, attempt ${delivery.attempt}, ${escapeHtml(delivery.at.slice(11, 19))} UTC, delivery <code>${escapeHtml(delivery.id)}</code></div>
    <pre>${escapeHtml(JSON.stringify(delivery.body, null, 2))}</pre></li>`;
}

function page(content: string, code = ''): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Reader</title><link rel="icon" href="data:,"><style>${style}</style></head>
<body><main>${content}</main>${code === '' ? '' : `<script type="module">${code}</script>`}</body></html>`;
}

const entities: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => entities[character] as string);
}
