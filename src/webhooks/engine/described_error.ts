/** Errors between threads: copied as they are, they would lose their class and the database's details. */

/** An error as data, including the database's details. */
export interface DescribedError {
  type: string;
  message: string;
  stack: string;
  /** Members such as the SQLSTATE. */
  details: Record<string, unknown>;
  cause?: DescribedError;
}

export function describeError(error: Error): DescribedError {
  const details = Object.entries(error).filter(([, value]) => ['string', 'number'].includes(typeof value));
  const { message, stack = '', cause } = error;
  return {
    type: error.constructor.name,
    message,
    stack,
    details: Object.fromEntries(details),
    ...(cause instanceof Error ? { cause: describeError(cause) } : {}),
  };
}

/** The described error, for a logger: it writes the name of the class and the stack only of an `Error`. */
export function reviveError({ type, message, stack, details, cause }: DescribedError): Error {
  const { Revived } = { Revived: class extends Error {} };
  Object.defineProperty(Revived, 'name', { value: type });
  const options = cause === undefined ? {} : { cause: reviveError(cause) };
  return Object.assign(new Revived(message, options), details, { stack });
}
