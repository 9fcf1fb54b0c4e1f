/** Keeps a visible list of deliveries up to date. */

import { useQueryClient } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import {
  type DeliveryFilter,
  deliveriesQuery,
  streamDeliveries,
  withDelivery,
} from '../../api/deliveries.ts';

/** Milliseconds before a closed or refused stream is reopened. */
const pauseMs = 3_000;

/** @returns whether the stream is connected */
export function useLiveDeliveries(id: string, filter: DeliveryFilter): boolean {
  const cache = useQueryClient();
  const [isLive, setLive] = useState(false);
  const key = JSON.stringify(filter);
  useEffect(() => {
    const stop = new AbortController();
    const wanted = JSON.parse(key) as DeliveryFilter;
    const { queryKey } = deliveriesQuery(id, wanted);
    const watch = async () => {
      for await (const delivery of streamDeliveries(id, wanted, stop.signal)) {
        setLive(true);
        cache.setQueryData(queryKey, (data) => withDelivery(data, delivery));
      }
    };
    const keepWatching = async () => {
      while (!stop.signal.aborted) {
        await watch().catch(() => undefined);
        setLive(false);
        if (stop.signal.aborted) return;
        await pause(pauseMs, stop.signal);
        // Load what changed meanwhile.
        if (!document.hidden) await cache.invalidateQueries({ queryKey });
      }
    };
    void keepWatching();
    return () => stop.abort();
  }, [id, key, cache]);
  return isLive;
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
