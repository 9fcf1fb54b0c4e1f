/** The embedded PostgreSQL cannot be used. The message is one sentence that the operator can act on. */
export class EmbeddedError extends Error {
  override readonly name = 'EmbeddedError';
}

/** The `code` of a system error (`ENOENT`, `EACCES`) or of PostgreSQL (`57P03`), or undefined. */
export function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** Reports system errors, such as a full disk, in one sentence too. */
export function asEmbeddedError(error: unknown): EmbeddedError {
  if (error instanceof EmbeddedError) return error;
  return new EmbeddedError(`The embedded PostgreSQL cannot be used: ${(error as Error).message}.`, {
    cause: error,
  });
}

/**
 * Explains the error of a file, such as a full disk, in one sentence, and returns other errors unchanged.
 * @param what what failed, such as "The backup cannot be written"
 */
export function explainFileError(error: unknown, what: string): unknown {
  const isOfFile = error instanceof Error && 'syscall' in error && 'path' in error;
  const isFull = errorCode(error) === 'ENOSPC' || errorCode(error) === 'EDQUOT';
  return isOfFile || isFull
    ? new EmbeddedError(`${what}: ${(error as Error).message}.`, { cause: error })
    : error;
}
