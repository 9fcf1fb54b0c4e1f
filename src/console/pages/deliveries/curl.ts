/** A delivery as a command for a shell, to be sent to a receiver by hand. */

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

/** For a POSIX shell: nothing in it has a meaning. */
function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
