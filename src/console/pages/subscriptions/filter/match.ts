/** Asks the server whether an example would match a filter. */

import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import type { FilterMatch, FilterMatchAsked } from '../../../api/generated.ts';
import { request } from '../../../api/request.ts';

/** Milliseconds without a change until the server is asked. */
const pauseMs = 400;
const cachedMs = 60_000;

export interface MatchAsked {
  kind: string;
  filter: FilterMatchAsked['filter'];
  body: unknown;
}

export interface MatchAnswer {
  data: FilterMatch | undefined;
  error: unknown;
  /** Whether the answer is about what was asked before. */
  isOld: boolean;
}

/** @param asked null while the filter or the example is incomplete */
export function useMatch(asked: MatchAsked | null): MatchAnswer {
  const wanted = asked === null ? null : JSON.stringify(asked);
  const settled = useSettled(wanted);
  const { data, error, isPlaceholderData } = useQuery({
    queryKey: ['filter-match', settled],
    queryFn: ({ signal }) => {
      const { kind, ...body } = JSON.parse(settled as string) as MatchAsked;
      return request('POST /event-kinds/{kind}/match', { path: { kind }, body, signal });
    },
    enabled: settled !== null && wanted !== null,
    placeholderData: keepPreviousData,
    staleTime: cachedMs,
    gcTime: cachedMs,
  });
  const isOld = wanted !== settled || isPlaceholderData;
  return wanted === null ? { data: undefined, error: null, isOld: false } : { data, error, isOld };
}

function useSettled(value: string | null): string | null {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), pauseMs);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
