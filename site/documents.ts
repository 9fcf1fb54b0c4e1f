/**
 * Converts the documents of the repository to the pages of the site: links between documents become links between pages, links to
 * sources become text (the site stands alone), and diagrams become part of the page, so that they follow its theme.
 */

import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { anchorOf } from '../scripts/reference/markdown.ts';
import { pages, type SitePage } from './pages.ts';

export const root = fileURLToPath(new URL('..', import.meta.url));

const byFile = new Map(pages.map((page) => [page.file, page]));

export interface ConvertedPage extends SitePage {
  title: string;
  /** For VitePress. */
  text: string;
  /** For programs: Markdown whose links lead to Markdown. */
  markdown: string;
  /** Paths of the images that the page shows, from the root of the repository. */
  images: string[];
  /** Links that lead nowhere. */
  dead: string[];
}

/** Parts of README.md that the navigation replaces. */
const sectionsLeftOut: Readonly<Record<string, readonly string[]>> = {
  'README.md': ['All documents', 'Documentation site'],
};

export function convertPages(): ConvertedPage[] {
  return pages.map(convertPage);
}

function convertPage(page: SitePage): ConvertedPage {
  const source = withoutSections(
    readFileSync(join(root, page.file), 'utf8'),
    sectionsLeftOut[page.file] ?? [],
  );
  const images: string[] = [];
  const dead: string[] = [];
  const convert = (extension: string) =>
    replaceLinks(source, (whole, bang, text, target) => {
      if (/^[a-z][a-z0-9+.-]*:/i.test(target)) return whole;
      const link = resolveLink(page, target);
      if (link === null) dead.push(target);
      if (link === null || link.kind === 'source') return text;
      if (link.kind === 'image') images.push(link.path);
      if (link.kind === 'page') {
        // A reader of the site sees pages, not files.
        const name = /^[\w/-]+\.md$/.test(text) ? link.page.name : text;
        return `[${name}](/${addressOf(link.page, extension)}${link.anchor})`;
      }
      if (link.kind === 'anchor') return whole;
      if (extension === '' && link.path.endsWith('.svg')) return inlineDiagram(link.path, text);
      return `${bang}[${text}](/images/${link.path.split('/').at(-1)})`;
    });
  const [, title = ''] = /^# (.+)$/m.exec(source) ?? [];
  const text = convert('');
  const markdown = convert('.md');
  return {
    ...page,
    title: title.replaceAll('`', ''),
    text,
    markdown,
    images: [...new Set(images)],
    dead: [...new Set(dead)],
  };
}

type Link =
  | { kind: 'page'; page: SitePage; anchor: string }
  | { kind: 'anchor' }
  | { kind: 'image'; path: string }
  | { kind: 'source' };

/** @returns null if the target does not exist */
function resolveLink(from: SitePage, target: string): Link | null {
  const [path = '', anchor] = target.split('#');
  if (path === '') return { kind: 'anchor' };
  const file = normalize(join(dirname(from.file), path)).replace(/\/$/, '');
  const page = byFile.get(file) ?? byFile.get(`${file}/README.md`);
  if (page !== undefined) return { kind: 'page', page, anchor: anchor === undefined ? '' : `#${anchor}` };
  if (file.startsWith('..') || !existsSync(join(root, file))) return null;
  return /\.(?:png|svg|jpg)$/.test(file) ? { kind: 'image', path: file } : { kind: 'source' };
}

export function addressOf({ route }: Pick<SitePage, 'route'>, extension = ''): string {
  if (extension !== '') return `${route}${extension}`;
  return route.replace(/(^|\/)index$/, '$1');
}

/** The drawing without its own style: the site has one for both themes, and its policy allows no style in a page. */
function inlineDiagram(path: string, description: string): string {
  const svg = readFileSync(join(root, path), 'utf8')
    .replace(/<style>[\s\S]*?<\/style>/, '')
    .replaceAll(/\n\s*\n/g, '\n')
    .trim();
  const name = description.replaceAll('&', '&amp;').replaceAll('"', '&quot;').replaceAll('<', '&lt;');
  return `<div class="diagram" role="img" aria-label="${name}">\n${svg}\n</div>`;
}

/** A block of code, a link or image (its text may contain code), or code in a line. */
const parts = /^ *```[\s\S]*?^ *```$|(!?)\[((?:`[^`\n]*`|[^[\]`]|\[[^\]]*\])*)\]\(([^()\s]+)\)|`[^`\n]+`/gm;

/** Replaces links and images. Leaves code alone. */
function replaceLinks(
  text: string,
  replace: (whole: string, bang: string, text: string, target: string) => string,
): string {
  return text.replaceAll(parts, (whole, bang = '', inner = '', target?: string) =>
    target === undefined ? whole : replace(whole, bang, inner, target),
  );
}

/** The targets of all links and images. */
export function linksOf(text: string): string[] {
  const targets: string[] = [];
  replaceLinks(text, (whole, _bang, _inner, target) => {
    targets.push(target);
    return whole;
  });
  return targets;
}

function withoutSections(text: string, titles: readonly string[]): string {
  return titles.reduce((rest, title) => {
    const start = rest.indexOf(`\n## ${title}\n`);
    const end = rest.indexOf('\n## ', start + 1);
    return rest.slice(0, start + 1) + (end < 0 ? '' : rest.slice(end + 1));
  }, text);
}

/** The anchors of a document's headings, as GitHub and the site make them. */
export function anchorsOf(text: string): Set<string> {
  const anchors = new Set<string>();
  const withoutCode = text.replaceAll(/^ *```[\s\S]*?^ *```$/gm, '');
  for (const [, heading = ''] of withoutCode.matchAll(/^#{1,6} (.+)$/gm)) {
    const plain = heading.replaceAll(/!?\[([^\]]*)\]\([^)]*\)/g, '$1');
    const anchor = anchorOf(plain);
    let unique = anchor;
    for (let count = 1; anchors.has(unique); count += 1) unique = `${anchor}-${count}`;
    anchors.add(unique);
  }
  return anchors;
}
