/** Media types: what a client takes (RFC 9110 section 12.5.1) and what a body is (section 8.3). */

/** The type without its parameters, lower case; undefined where there is none. */
export function mediaType(header: string | undefined): string | undefined {
  const type = header?.split(';', 1)[0]?.trim().toLowerCase();
  return type === '' ? undefined : type;
}

/** Whether a parameter names a character set that is not UTF-8: JSON has no other (RFC 8259 section 8.1). */
export function hasOtherCharset(header: string): boolean {
  const charset = /;\s*charset\s*=\s*"?([^";\s]*)"?/i.exec(header)?.[1];
  return charset !== undefined && !/^utf-?8$/i.test(charset);
}

/**
 * Whether `Accept` admits a type. The most specific range decides; a weight of 0 refuses.
 * @param header undefined: everything is taken
 */
export function admits(header: string | undefined, type: string): boolean {
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
