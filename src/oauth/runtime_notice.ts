/**
 * oidc-provider prints a warning when it is imported on a Node that is not (yet) an LTS release. Nuncio brings the
 * Node that its tests have run on, so this one line is kept from every start; all others pass. To be imported
 * before anything that imports oidc-provider.
 */

const { warn } = console;

console.warn = (...words: unknown[]) => {
  if (!String(words[0]).includes('Unsupported runtime. Use Node.js')) warn(...words);
};
await import('oidc-provider');
console.warn = warn;
