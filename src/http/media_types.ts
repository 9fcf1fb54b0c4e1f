/** Content negotiation: the types a client accepts (RFC 9110 section 12.5.1) and the type of a body (section 8.3). */

/** Returns the type in lower case without its parameters, or undefined. */
export function mediaType(header: string | undefined): string | undefined {
  const type = header?.split(';', 1)[0]?.trim().toLowerCase();
  return type === '' ? undefined : type;
}

/** Whether the header names a charset other than UTF-8, the only one of JSON (RFC 8259 section 8.1). */
export function hasOtherCharset(header: string): boolean {
  const charset = /;\s*charset\s*=\s*"?([^";\s]*)"?/i.exec(header)?.[1];
  return charset !== undefined && !/^utf-?8$/i.test(charset);
}

/**
 * Whether `Accept` allows a type. The most specific range decides; a weight of 0 excludes the type.
 * @param header undefined means that every type is acceptable
 */
export function acceptsMediaType(header: string | undefined, type: string): boolean {
  if (header === undefined || header.trim() === '') return true;
  const family = `${type.split('/', 1)[0]}/*`;
  let best = { precision: -1, weight: 0 };
  for (const range of header.split(',')) {
    const [name = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase());
    const precision = name === type ? 2 : name === family ? 1 : name === '*/*' ? 0 : -1;
    if (precision <= best.precision) continue;
    const weight = parameters.find((parameter) => /^q\s*=/.test(parameter));
    best = { precision, weight: weight === undefined ? 1 : Number(weight.split('=')[1]) };
  }
  return best.weight > 0;
}
