/** Settings of the engine's database sessions. */

/**
 * The engine looks rows up by key, in tables that grow from empty to millions of rows between two statistics runs. A
 * plan from when they were empty must not scan them later.
 */
const plannerSettings = '-c enable_seqscan=off -c jit=off';

/**
 * A paused or partitioned node leaves database sessions behind. The database ends a session whose data is not
 * acknowledged for 10 s, and one that is idle for longer than the pool keeps it.
 */
const abandonedSettings = '-c idle_session_timeout=45s -c tcp_user_timeout=10s';
export const sessionSettings = `${plannerSettings} ${abandonedSettings}`;

/** @param connectionString of the database @param settings options of PostgreSQL's command line */
export function withSessionSettings(connectionString: string, settings: string): string {
  // An empty host means a Unix socket: the driver accepts it, the URL class does not.
  const url = new URL(connectionString.replace('@/', '@socket/'));
  const given = url.searchParams.get('options') ?? '';
  url.searchParams.set('options', `${given} ${settings}`.trim());
  return connectionString.includes('@/') ? url.href.replace('@socket/', '@/') : url.href;
}
