/** How the console is built (scripts/build_console.ts runs it). */

import { defineConfig } from 'vite';

export default defineConfig({
  root: import.meta.dirname,
  base: '/console/',
  build: {
    emptyOutDir: true,
    // Everything is a file of its own: the policy of the page lets nothing be inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 1_000,
  },
});
