/** A paged list with loading, empty and error states. */

import type { InfiniteData, UseInfiniteQueryResult } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { Button } from './button.tsx';
import { Failure, Skeletons } from './states.tsx';

export type ListQuery<Item> = UseInfiniteQueryResult<InfiniteData<{ items: Item[] }>>;

interface PagedListProps<Item> {
  query: ListQuery<Item>;
  /** Renders the empty state. @param hasMore whether there are pages left to search */
  nothing: (hasMore: boolean) => ReactNode;
  children: (items: readonly Item[]) => ReactNode;
}

export function PagedList<Item>({ query, nothing, children }: PagedListProps<Item>) {
  const { data, error, refetch, hasNextPage, fetchNextPage, isFetchingNextPage, isPlaceholderData } = query;
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Skeletons count={6} />;
  const items = data.pages.flatMap((page) => page.items);
  return (
    <div className={isPlaceholderData ? 'stack list-old' : 'stack'} aria-busy={isPlaceholderData}>
      <div className="card table-scroll">{items.length === 0 ? nothing(hasNextPage) : children(items)}</div>
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
