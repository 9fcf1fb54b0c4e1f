/**
 * Lists of the administration: read in the order of an index, filtered as they are read. A page looks through a bounded
 * number of rows, however few of them are wanted: it may be short, or empty, and still have a next one.
 */

/** Rows that one page looks through at most. */
export const lookedThroughMax = 1_000;

export interface Looked<Row> {
  /** One more than the page takes, where there is a next one. */
  found: Row[];
  /** Where the page is not full and there is more to look through: the key to go on after. */
  more: string | null;
}

/**
 * @param read rows after a key, in the order of an index
 * @param fits null where every row is wanted
 */
export async function lookThrough<Row>(
  read: (after: string | null, count: number) => Promise<Row[]>,
  fits: ((row: Row) => boolean) | null,
  key: (row: Row) => string,
  page: { limit: number; after: string | null },
): Promise<Looked<Row>> {
  const count = fits === null ? page.limit + 1 : lookedThroughMax;
  const rows = await read(page.after, count);
  const found = (fits === null ? rows : rows.filter(fits)).slice(0, page.limit + 1);
  const last = rows.at(-1);
  const isThrough = rows.length < count || last === undefined || fits === null;
  return { found, more: found.length > page.limit || isThrough ? null : key(last) };
}
