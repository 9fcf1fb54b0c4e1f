/** The settings of VitePress. The pages come from `site/.pages`, which `site/main.ts` writes. */

import { defineConfig } from 'vitepress';
import { anchorOf as slugify } from '../../scripts/reference/markdown.ts';
import { groups } from '../pages.ts';

/**
 * No request to another host, and no script in a page. VitePress sets the colors of code and some sizes in `style` attributes, so styles
 * cannot be as strict.
 */
const policy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data:",
  "font-src 'self'",
  "connect-src 'self'",
  "manifest-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
].join('; ');

const sidebar = groups.map(({ title, isFolded, pages }) => ({
  text: title,
  collapsed: isFolded === true,
  items: pages.map(({ name, route }) => ({ text: name, link: `/${route.replace(/(^|\/)index$/, '$1')}` })),
}));

export default defineConfig({
  title: 'Nuncio',
  titleTemplate: ':title · Nuncio',
  lang: 'en-US',
  srcDir: '.pages',
  // The Markdown versions of the pages, which are copied as they are.
  srcExclude: ['public/**'],
  ignoreDeadLinks: 'localhostLinks',
  outDir: 'dist',
  cacheDir: '.vitepress/cache',
  cleanUrls: true,
  // Scripts in files instead of in pages.
  metaChunk: true,
  lastUpdated: false,
  head: [['link', { rel: 'icon', href: '/icon.svg', type: 'image/svg+xml' }]],
  markdown: {
    anchor: { slugify },
    toc: { slugify },
    headers: { slugify },
    image: { lazyLoading: true },
  },
  themeConfig: {
    siteTitle: 'Nuncio',
    logo: '/icon.svg',
    nav: [
      { text: 'Start', link: '/start' },
      { text: 'Concepts', link: '/concepts/grants' },
      {
        text: 'Guides',
        items: [
          'Existing application',
          'New product',
          'App developer',
          'Subscriber',
          'Agent',
          'Operator',
        ].map((text) => ({
          text,
          link: sidebar.find((group) => group.text === text).items[0].link,
        })),
      },
      { text: 'Reference', link: '/settings' },
      { text: 'Comparison', link: '/comparison' },
    ],
    sidebar,
    outline: { level: [2, 3], label: 'On this page' },
    search: { provider: 'local' },
    docFooter: { prev: 'Previous', next: 'Next' },
    externalLinkIcon: true,
    notFound: {
      title: 'Page not found',
      quote: 'Check the address, search, or go to the start page.',
      linkText: 'Start page',
      linkLabel: 'Start page',
    },
  },
  transformPageData(pageData) {
    pageData.frontmatter.head ??= [];
    pageData.frontmatter.head.push(['meta', { property: 'og:title', content: pageData.title }]);
    if (pageData.description)
      pageData.frontmatter.head.push(['meta', { property: 'og:description', content: pageData.description }]);
    const markdown = `/${pageData.relativePath}`;
    if (!pageData.isNotFound)
      pageData.frontmatter.head.push(['link', { rel: 'alternate', type: 'text/markdown', href: markdown }]);
  },
  transformHtml(code, _id, { siteConfig }) {
    const { base } = siteConfig.site;
    return code
      .replaceAll(/<script id="check-(?:dark-mode|mac-os)">[\s\S]*?<\/script>/g, '')
      .replace(
        '<head>',
        `<head>\n    <meta http-equiv="Content-Security-Policy" content="${policy}">\n    <script src="${base}early.js"></script>`,
      );
  },
});
