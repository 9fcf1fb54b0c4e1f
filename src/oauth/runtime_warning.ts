/**
 * Suppresses the warning that oidc-provider prints on import if Node is not an LTS release. Nuncio ships the Node release
 * that it is tested with. Other warnings pass. Must be imported before any module that imports oidc-provider.
 */

const { warn } = console;

console.warn = (...words: unknown[]) => {
  if (!String(words[0]).includes('Unsupported runtime. Use Node.js')) warn(...words);
};
await import('oidc-provider');
console.warn = warn;
