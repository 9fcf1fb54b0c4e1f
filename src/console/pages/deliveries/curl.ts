/** A delivery as a curl command. */

import type { Attempt } from '../../api/generated.ts';

export function curlOf(attempt: Attempt, body: unknown): string {
  const { request } = attempt;
  if (request === null) return '';
  const headers = Object.entries(request.headers)
    .filter(([name]) => !/^(?:host|content-length|accept-encoding)$/i.test(name))
    .map(([name, value]) => `  -H ${quote(`${name}: ${value}`)}`);
  const lines = [`curl -i ${quote(request.url)}`, ...headers, `  --data-raw ${quote(JSON.stringify(body))}`];
  return lines.join(' \\\n');
}

/** Quotes a string for a POSIX shell. */
function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
