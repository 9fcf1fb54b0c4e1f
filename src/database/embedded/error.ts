/** The embedded PostgreSQL cannot be used. The message is one sentence that the operator can act on. */
export class EmbeddedError extends Error {
  override readonly name = 'EmbeddedError';
}

/** The `code` of a system error (`ENOENT`, `EACCES`) or of PostgreSQL (`57P03`), or undefined. */
export function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}
