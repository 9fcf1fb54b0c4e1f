/** A list of the API as a table: page by page, with what to show where there is nothing. */

import type { InfiniteData, UseInfiniteQueryResult } from '@tanstack/react-query';
import { Search } from 'lucide-react';
import type { ReactNode } from 'react';
import { Button } from './button.tsx';
import { Empty, Failure, Skeletons } from './states.tsx';

export interface Column<Item> {
  title: string;
  /** Whether it stands for the whole row where there is room for one column alone. */
  isMain?: boolean;
  show: (item: Item) => ReactNode;
}

interface DataTableProps<Item> {
  query: UseInfiniteQueryResult<InfiniteData<{ items: Item[] }>>;
  columns: readonly Column<Item>[];
  keyOf: (item: Item) => string;
  /** What there is none of. */
  nothing: string;
}

export function DataTable<Item>({ query, columns, keyOf, nothing }: DataTableProps<Item>) {
  const { data, error, refetch, hasNextPage, fetchNextPage, isFetchingNextPage } = query;
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Skeletons count={6} />;
  const items = data.pages.flatMap((page) => page.items);
  return (
    <div className="stack">
      <div className="card">
        {items.length === 0 ? (
          <Empty icon={Search} title={nothing}>
            {hasNextPage ? 'No match so far. Load more to search further.' : 'Try other filters.'}
          </Empty>
        ) : (
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
      </div>
      {hasNextPage && (
        <div>
          <Button isPending={isFetchingNextPage} onPress={() => void fetchNextPage()}>
            Load more
          </Button>
        </div>
      )}
    </div>
  );
}
