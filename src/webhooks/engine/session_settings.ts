/** Settings of the engine's database sessions. */

/**
 * The engine looks rows up by key, in tables that grow from empty to millions of rows between two statistics runs. A
 * plan from when they were empty must not scan them later.
 */
const plannerSettings = { enable_seqscan: 'off', jit: 'off' };

/**
 * A paused or partitioned node leaves database sessions behind. The database ends a session whose data is not
 * acknowledged for 10 s, and one that is idle for longer than the pool keeps it.
 */
const abandonedSettings = { idle_session_timeout: '45s', tcp_user_timeout: '10s' };

export const sessionSettings: Readonly<Record<string, string>> = { ...plannerSettings, ...abandonedSettings };
