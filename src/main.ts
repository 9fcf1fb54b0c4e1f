#!/usr/bin/env node
/**
 * The executable: refuses a Node that is too old in one sentence, then runs the command line. It imports nothing before
 * that, because an older Node already fails at the imports of the rest.
 */

/** The oldest Node that every dependency runs on; `engines` of package.json says the same. */
const nodeMin = [22, 19] as const;

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major > nodeMin[0] || (major === nodeMin[0] && minor >= nodeMin[1])) {
  hideExperiments();
  await import('./cli.ts');
} else {
  process.stderr.write(
    `nuncio: Node ${process.versions.node} is too old: Nuncio runs on Node ${nodeMin.join('.')} or later.\n`,
  );
  process.exitCode = 1;
}

/**
 * Node 22 warns that SQLite and types in `nuncio.config.ts` are experimental; later versions have them as stable. Node also
 * warns of a `nuncio.config.ts` whose package.json does not say `"type": "module"`, which `npm init` does not write. Every
 * other warning is shown.
 */
function hideExperiments(): void {
  const [show] = process.listeners('warning');
  if (show === undefined) return;
  process.removeListener('warning', show);
  process.on('warning', (warning) => {
    const isKnown =
      (warning as NodeJS.ErrnoException).code === 'MODULE_TYPELESS_PACKAGE_JSON' ||
      (warning.name === 'ExperimentalWarning' && /SQLite|Type Stripping/.test(warning.message));
    if (!isKnown) show(warning);
  });
}
