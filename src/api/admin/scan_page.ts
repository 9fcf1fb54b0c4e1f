/**
 * Filtered lists for administrators. Rows are read in the order of an index and filtered in memory. One page scans a
 * bounded number of rows, so it may be short or empty and still have a next page.
 */

/** Maximum rows that one page scans. */
const scannedRowsMax = 1_000;

export interface ScannedPage<Row> {
  /** One row more than the page size if there is a next page. */
  found: Row[];
  /** The key to continue after, if the page is not full but more rows are left to scan. */
  more: string | null;
}

/**
 * @param read returns rows after a key, in the order of an index
 * @param matches the filter; null to return every row
 */
export async function scanPage<Row>(
  read: (after: string | null, count: number) => Promise<Row[]>,
  matches: ((row: Row) => boolean) | null,
  key: (row: Row) => string,
  page: { limit: number; after: string | null },
): Promise<ScannedPage<Row>> {
  const count = matches === null ? page.limit + 1 : scannedRowsMax;
  const rows = await read(page.after, count);
  const found = (matches === null ? rows : rows.filter(matches)).slice(0, page.limit + 1);
  const last = rows.at(-1);
  const isExhausted = rows.length < count || last === undefined || matches === null;
  return { found, more: found.length > page.limit || isExhausted ? null : key(last) };
}
