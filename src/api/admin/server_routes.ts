/** `/admin/keys`, `/admin/nodes`, `/admin/stats` and `/admin/settings`: the state of the server, without secrets. */

import { sql } from 'kysely';
import Type from 'typebox';
import type { Config } from '../../config/config.ts';
import type { Database } from '../../database/database.ts';
import { links } from '../../http/describe.ts';
import { readPage } from '../../http/page.ts';
import { Nullable, named, StringEnum, strict, Time } from '../../http/schema.ts';
import { version } from '../../version.ts';
import { allLanes, readStats } from '../../webhooks/log/delivery_stats.ts';
import { serve } from '../route.ts';
import { readStatsRange, representHealth } from '../webhooks/health_routes.ts';
import { healthMembers } from '../webhooks/schemas.ts';
import { type AdminOptions, readRoute } from './options.ts';
import { rangeParameters } from './parameters.ts';

const expiry = { signs_from: Time(), expires_at: Nullable(Time()) };
const signingKey = {
  kid: Type.String(),
  algorithm: Type.String(),
  state: StringEnum('next', 'current', 'previous'),
  created_at: Time(),
  ...expiry,
};
const deliveryKey = { kid: Type.String(), created_at: Time(), ...expiry, signs_until: Nullable(Time()) };
const AdminKeys = named(
  'AdminKeys',
  Type.Object(
    {
      signing_keys: Type.Array(Type.Object(signingKey, strict)),
      delivery_keys: Type.Array(Type.Object(deliveryKey, strict)),
      _links: links,
    },
    strict,
  ),
);

const node = {
  id: Type.String(),
  host: Type.String(),
  process: Type.String(),
  alive_until: Time(),
  state: StringEnum('alive', 'gone'),
};
const AdminNodes = named(
  'AdminNodes',
  Type.Object({ items: Type.Array(Type.Object(node, strict)), _links: links }, strict),
);

const count = Type.Object({ count: Type.Integer({ minimum: 0 }), is_estimate: Type.Boolean() }, strict);
const counts = { accounts: count, apps: count, grants: count, subscriptions: count, events_waiting: count };
const AdminStats = named('AdminStats', Type.Object({ ...healthMembers, ...counts }, strict));

const shownSetting = {
  name: Type.String(),
  value: Type.Any(),
  is_secret: Type.Boolean(),
  section: StringEnum('environment', 'platform'),
};
const AdminSettings = named(
  'AdminSettings',
  Type.Object(
    { version: Type.String(), settings: Type.Array(Type.Object(shownSetting, strict)), _links: links },
    strict,
  ),
);

export const serverRoutes = {
  keys: readRoute('read_keys', '/admin/keys', 'Read the signing keys and delivery keys', AdminKeys),
  nodes: readRoute('read_nodes', '/admin/nodes', 'Read the nodes', AdminNodes),
  stats: readRoute(
    'read_stats',
    '/admin/stats',
    'Read the health of all subscriptions, and row counts',
    AdminStats,
    rangeParameters('outcomes'),
  ),
  settings: readRoute(
    'read_settings',
    '/admin/settings',
    'Read the effective settings, without secrets',
    AdminSettings,
  ),
};

export function registerAdminServer(options: AdminOptions): void {
  const { db, config, platform } = options;

  serve(options, serverRoutes.keys, async ({ request }) => {
    rejectParameters(request);
    return {
      signing_keys: await readSigningKeys(db),
      delivery_keys: await readDeliveryKeys(db),
      _links: { self: { href: '/admin/keys' } },
    };
  });

  serve(options, serverRoutes.nodes, async ({ request }) => {
    rejectParameters(request);
    const { rows } = await sql<{
      id: string;
      host: string;
      process: string;
      alive_until: Date;
      is_alive: boolean;
    }>`
      select id, host, process, alive_until, alive_until > now() as is_alive
      from nodes order by alive_until desc, id limit ${nodesMax}`.execute(db);
    return {
      items: rows.map(({ id, host, process, alive_until, is_alive }) => ({
        id,
        host,
        process,
        alive_until: alive_until.toISOString(),
        state: is_alive ? 'alive' : 'gone',
      })),
      _links: { self: { href: '/admin/nodes' } },
    };
  });

  serve(options, serverRoutes.stats, async ({ request }) => {
    const range = readStatsRange(request);
    const stats = await readStats(db, [allLanes], range);
    const waiting = await countUpTo(db, sql`retries where due_at is not null`);
    const backlog = { pending: waiting.count, isCapped: waiting.isCapped, oldestAt: null };
    return { ...representHealth(request, range, stats, backlog), ...(await readCounts(db)) };
  });

  serve(options, serverRoutes.settings, async ({ request }) => {
    rejectParameters(request);
    return {
      version,
      settings: [...describeConfig(config), ...describePlatform(platform)],
      _links: { self: { href: '/admin/settings' } },
    };
  });
}

const nodesMax = 1_000;
const keysMax = 100;
/** Maximum rows to count. Beyond that, the response contains PostgreSQL's estimate. */
const countedMax = 10_000;

const rejectParameters = readPage;

async function readSigningKeys(db: Database): Promise<Record<string, unknown>[]> {
  const { rows } = await sql<{
    id: string;
    algorithm: string;
    state: string;
    created_at: Date;
    signs_from: Date;
    expires_at: Date | null;
  }>`
    select id, algorithm, created_at, signs_from, expires_at,
      case when signs_from > now() then 'next'
        when signs_from = max(signs_from) filter (where signs_from <= now()) over (partition by algorithm) then 'current'
        else 'previous' end as state
    from signing_keys where expires_at is null or expires_at > now()
    order by signs_from desc, id limit ${keysMax}`.execute(db);
  return rows.map((row) => ({
    kid: row.id,
    algorithm: row.algorithm,
    state: row.state,
    created_at: row.created_at.toISOString(),
    signs_from: row.signs_from.toISOString(),
    expires_at: row.expires_at?.toISOString() ?? null,
  }));
}

async function readDeliveryKeys(db: Database): Promise<Record<string, unknown>[]> {
  const { rows } = await sql<{
    id: string;
    created_at: Date;
    signs_from: Date;
    signs_until: Date | null;
    expires_at: Date | null;
  }>`
    select id, created_at, signs_from, signs_until, expires_at from delivery_keys
    where expires_at is null or expires_at > now()
    order by signs_from desc, id limit ${keysMax}`.execute(db);
  return rows.map((row) => ({
    kid: row.id,
    created_at: row.created_at.toISOString(),
    signs_from: row.signs_from.toISOString(),
    signs_until: row.signs_until?.toISOString() ?? null,
    expires_at: row.expires_at?.toISOString() ?? null,
  }));
}

async function readCounts(db: Database): Promise<Record<string, unknown>> {
  const tables = {
    accounts: sql`accounts`,
    apps: sql`clients`,
    grants: sql`grants where withdrawn_at is null`,
    subscriptions: sql`subscriptions where state <> 'ended'`,
    events_waiting: sql`outbox`,
  };
  const counts: Record<string, unknown> = {};
  for (const [name, rows] of Object.entries(tables)) {
    const { count, isCapped } = await countUpTo(db, rows);
    const table = name === 'apps' ? 'clients' : name === 'events_waiting' ? 'outbox' : name;
    const estimate = isCapped ? Math.max(await estimateRows(db, table), count) : count;
    counts[name] = { count: estimate, is_estimate: isCapped };
  }
  return counts;
}

async function countUpTo(
  db: Database,
  rows: ReturnType<typeof sql>,
): Promise<{ count: number; isCapped: boolean }> {
  const { rows: found } = await sql<{ count: number }>`
    select count(*)::int as count from (select from ${rows} limit ${countedMax + 1}) as few`.execute(db);
  const count = found[0]?.count ?? 0;
  return { count: Math.min(count, countedMax), isCapped: count > countedMax };
}

async function estimateRows(db: Database, table: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select reltuples::float8 as count from pg_class where relnamespace = current_schema()::regnamespace and relname = ${table}`.execute(
    db,
  );
  return Math.max(Math.round(rows[0]?.count ?? 0), 0);
}

type Setting = { name: string; value: unknown; is_secret: boolean; section: string };
const hidden = '***';

function describeConfig(config: Config): Setting[] {
  const setting = (name: string, value: unknown, isSecret = false): Setting => ({
    name,
    value: isSecret && value !== null ? hidden : value,
    is_secret: isSecret,
    section: 'environment',
  });
  return [
    setting('NUNCIO_BASE_URL', config.baseUrl),
    setting('PORT', config.port),
    setting('HOST', config.host),
    setting('DATABASE_URL', config.databaseUrl, true),
    setting('NUNCIO_DATABASE_SCHEMA', config.databaseSchema),
    setting('NUNCIO_DATA_DIR', config.dataDir),
    setting('NUNCIO_SECRET', config.secret, true),
    setting('NUNCIO_INSECURE_SUBSCRIBERS', config.insecureSubscribers),
    setting('NUNCIO_RETRY_SCHEDULE', config.retryScheduleSeconds),
    setting('NUNCIO_RATE_LIMIT', config.rateLimitPerMinute),
    setting('NUNCIO_CONCURRENT_REQUESTS', config.concurrentRequests),
    setting('NUNCIO_CLIENT_CONNECTIONS', config.clientConnections),
    setting('NUNCIO_NODE_NAME', config.nodeName),
    setting('NUNCIO_TRUST_PROXY', config.trustProxy),
    setting('NUNCIO_EGRESS_PROXY', config.egressProxy, true),
    setting('NUNCIO_EGRESS_PROXY_CONNECTIONS', config.egressProxyConnections),
    setting('NUNCIO_SMTP_URL', config.smtpUrl, true),
    setting('NUNCIO_MAIL_FROM', config.mailFrom),
    setting('NUNCIO_METRICS_PORT', config.metricsPort),
    setting('NUNCIO_METRICS_TOKEN', config.metricsToken, true),
    setting('NUNCIO_TLS_CERT_FILE', config.tls?.certFile ?? null),
    setting('NUNCIO_TLS_KEY_FILE', config.tls?.keyFile ?? null),
    setting('NUNCIO_TLS_CLIENT_CA_FILE', config.tls?.clientCaFile ?? null),
    setting('NUNCIO_CLIENT_CERT_FILE', config.clientCertificate?.certFile ?? null),
    setting('NUNCIO_CLIENT_KEY_FILE', config.clientCertificate?.keyFile ?? null),
    setting('NUNCIO_CONFIG', config.configFile),
    setting('LOG_LEVEL', config.logLevel),
  ];
}

/** The sections of `nuncio.config.ts` as one list. They contain names of environment variables, but no secret values. */
function describePlatform(platform: AdminOptions['platform']): Setting[] {
  return Object.entries(platform).flatMap(([section, values]) =>
    Object.entries(values as Record<string, unknown>).map(([name, value]) => ({
      name: `${section}.${name}`,
      value: value ?? null,
      is_secret: false,
      section: 'platform',
    })),
  );
}
