/** The app's connections, which refresh by themselves. */

import { useInfiniteQuery } from '@tanstack/react-query';
import { appConnectionsQuery } from '../../api/apps.ts';
import type { App } from '../../api/generated.ts';
import { ConnectionList } from '../connections/connection_list.tsx';

export function AppConnections({ app }: { app: App }) {
  const query = useInfiniteQuery(appConnectionsQuery(app.client_id));
  return (
    <div className="stack">
      <p className="soft">
        What happened when the app tried to connect, newest first. Updates every few seconds. Users are not
        named.
      </p>
      <ConnectionList query={query} />
    </div>
  );
}
