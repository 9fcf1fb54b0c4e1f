/** The authority of the test certificates, for hosts of incidents that servers must trust. */

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { authorityCertificate } from '../../test/support/network/certificates.ts';

/** Servers that start meanwhile trust the authority. */
export async function withAuthority<Result>(work: () => Promise<Result>): Promise<Result> {
  const folder = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
  const file = join(folder, 'authority.pem');
  writeFileSync(file, authorityCertificate);
  process.env.NODE_EXTRA_CA_CERTS = file;
  try {
    return await work();
  } finally {
    delete process.env.NODE_EXTRA_CA_CERTS;
    rmSync(folder, { recursive: true });
  }
}
