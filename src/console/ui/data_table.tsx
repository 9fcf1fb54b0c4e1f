/** A table of a paged list. */

import { Search } from 'lucide-react';
import type { ReactNode } from 'react';
import { type ListQuery, PagedList } from './paged_list.tsx';
import { Empty } from './states.tsx';

export interface Column<Item> {
  title: string;
  /** Whether it represents the row on narrow screens, which have room for one column. */
  isMain?: boolean;
  show: (item: Item) => ReactNode;
}

interface DataTableProps<Item> {
  query: ListQuery<Item>;
  columns: readonly Column<Item>[];
  keyOf: (item: Item) => string;
  /** The title of the empty state. */
  nothing: string;
  /** What that means, for a list without filters. */
  nothingText?: string;
}

export function DataTable<Item>({
  query,
  columns,
  keyOf,
  nothing,
  nothingText = 'Try other filters.',
}: DataTableProps<Item>) {
  return (
    <PagedList
      query={query}
      nothing={(hasMore) => (
        <Empty icon={Search} title={nothing}>
          {hasMore ? 'No match so far. Load more to search further.' : nothingText}
        </Empty>
      )}
    >
      {(items) => (
        <table className="table table-cards">
          <thead>
            <tr>
              {columns.map(({ title }) => (
                <th key={title} scope="col">
                  {title === '' ? <span className="visually-hidden">Actions</span> : title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {items.map((item) => (
              <tr key={keyOf(item)}>
                {columns.map(({ title, isMain, show }) => (
                  <td key={title} data-label={isMain === true || title === '' ? undefined : title}>
                    {show(item)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </PagedList>
  );
}
