/** `nuncio/verify` as one minified script, as a bundler makes it for a worker or a browser. */

import { fileURLToPath } from 'node:url';
import { build } from 'vite';

const entry = fileURLToPath(new URL('../../../src/verify/verify.ts', import.meta.url));

/** Returns a script that sets the global `nuncio` to the exports. */
export async function bundleVerify(): Promise<string> {
  const [output] = (await build({
    configFile: false,
    logLevel: 'error',
    build: {
      write: false,
      minify: true,
      target: 'es2022',
      lib: { entry, formats: ['iife'], name: 'nuncio' },
    },
  })) as unknown as { output: { code: string }[] }[];
  return output?.output[0]?.code as string;
}
