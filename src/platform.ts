/**
 * The platform: loads and validates the operator's configuration, `nuncio.config.ts`. All problems are reported together,
 * each with its place and reason.
 */

import { dirname, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import { type AccountDeclaration, type AccountSettings, readAccountSettings } from './accounts/settings.ts';
import { type AppSettings, readAppSettings } from './apps/settings.ts';
import { compileCollection } from './collections/compile.ts';
import { type Collection, readCollection } from './collections/declaration.ts';
import { kindsOf } from './collections/kinds.ts';
import { type Report, type ResourceType, withChildren } from './collections/resource_type.ts';
import { importConfigFile } from './config/config_module.ts';
import { type RetentionSettings, readRetention } from './database/retention_settings.ts';
import { builtInNames } from './events/built_in_names.ts';
import type { ConversionSource } from './events/conversion_source.ts';
import { type EventKind, kindMembers } from './events/kind.ts';
import { templateError } from './events/resource_link.ts';
import { checkVersions } from './events/version_checks.ts';
import { type McpDeclaration, type McpSettings, readMcpSettings } from './mcp/settings.ts';
import { type DefinedTool, readDefinedTools, type ToolDefinition } from './mcp/tools/define_tool.ts';
import { checkTools } from './mcp/tools/tools.ts';
import { type OAuthSettings, readOAuthSettings } from './oauth/settings.ts';
import { reportUnknown } from './shared/nearest.ts';
import { type Brand, type BrandDeclaration, readBrand } from './web/brand.ts';
import { readWebhookSettings, type WebhookDeclaration, type WebhookSettings } from './webhooks/settings.ts';

/** The default export of `nuncio.config.ts`. */
export interface PlatformDeclaration {
  collections?: readonly Collection[];
  /** Event kinds that other systems publish, besides those of the collections. */
  eventKinds?: readonly EventKind[];
  /** Settings of the authorization server. */
  oauth?: Partial<OAuthSettings>;
  /** Settings of webhooks. */
  webhooks?: WebhookDeclaration;
  /** Settings of apps: who may create them, and whether they are reviewed. */
  apps?: Partial<AppSettings>;
  /** Settings of accounts: who has the users, and how they sign in. */
  accounts?: AccountDeclaration;
  /** Settings of the endpoint for agents. */
  mcp?: McpDeclaration;
  /** How many days rows are kept. */
  retention?: Partial<RetentionSettings>;
  /** Tools that agents get besides those of the collections. */
  tools?: readonly DefinedTool[];
  /** Name, logo, color and links of the operator, shown on every page. */
  brand?: BrandDeclaration;
  /** Redirect target of the base URL: `https`, or `http` on loopback. Default: a start page of the server. */
  startUrl?: string;
}

export interface Platform {
  collections: readonly ResourceType[];
  /** Event kinds of the collections, followed by the declared ones. */
  eventKinds: readonly EventKind[];
  /** The objects of the platform's `read:<object>` and `write:<object>` scopes, sorted. */
  objects: readonly string[];
  oauth: OAuthSettings;
  webhooks: WebhookSettings;
  apps: AppSettings;
  accounts: AccountSettings;
  mcp: McpSettings;
  retention: RetentionSettings;
  /** Those that the operator defined. */
  tools: readonly ToolDefinition[];
  brand: Brand;
  startUrl: string | null;
  /** Where the thread that converts event bodies finds the functions of the kinds; null if no file declares the platform. */
  conversions: ConversionSource | null;
}

/** An invalid configuration, with one line per problem. */
export class PlatformError extends Error {
  override readonly name = 'PlatformError';
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join('\n'));
    this.problems = problems;
  }
}

/** Declares the platform. Its result is the default export of `nuncio.config.ts`. */
export function defineConfig(declaration: PlatformDeclaration): PlatformDeclaration {
  return Object.freeze({ ...declaration });
}

/** First path segments and table names that the server uses. */
const reservedNames = new Set(
  `access_tokens account account_links accounts acknowledgements admin agent_subscriptions api app_creators app_invitations app_logos app_members apps assets asyncapi attempt_bytes attempts audit_entries authorization_codes
  client_secrets clients collections connections console database_epochs declared_kinds declined_notices deferred_deliveries deleted_accounts deliveries delivery_hold_acknowledgements delivery_holds delivery_keys delivery_stats dev device device_codes disconnected_issuers docs event_ids event_kinds event_schemas
  events failing_warnings grants health held_ranges idempotency_keys inbox initial_access_tokens intake interaction interactions lane_epochs lane_progress lanes leases livez
  lock_salt locks login login_requests login_sessions logout_notices mails mcp meta metrics migrations nodes notices oauth openapi outbox parked_events public pushed_requests
  rate_windows readyz recoveries refresh_tokens registration_access_tokens registration_tokens registration_windows rejected_events retention retries session_grants sessions sign_in_failures signing_keys
  subscription_revisions subscriptions token upstream_identities upstream_logins used_proofs webhooks withdrawals`.split(
    /\s+/,
  ),
);
/** The sections of the configuration. */
const sections: Readonly<Record<keyof PlatformDeclaration, true>> = {
  collections: true,
  eventKinds: true,
  oauth: true,
  webhooks: true,
  apps: true,
  accounts: true,
  mcp: true,
  retention: true,
  tools: true,
  brand: true,
  startUrl: true,
};
/** Event kinds that the server publishes. */
const reservedKinds = new Set(builtInNames);
/** Objects of the server's own scopes. */
const reservedObjects = new Set(['webhooks', 'events', 'tokens', 'apps', 'accounts', 'logins']);
/** Maximum numbers of collections and event kinds. */
const collectionsMax = 200;
const eventKindsMax = 2_000;

/** The thread that converts event bodies. */
const conversionThread = new URL(
  import.meta.url.endsWith('.ts') ? './conversion_thread.ts' : './conversion_thread.js',
  import.meta.url,
).href;

/** The example platform: the file beside package.json, or its compiled form. */
const defaultFile = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../nuncio.config.ts' : './nuncio.config.js', import.meta.url),
);

/**
 * @param configFile absolute path, or null for the shipped example
 * @throws PlatformError with all problems
 */
export async function loadPlatform(configFile: string | null): Promise<Platform> {
  const file = resolve(configFile ?? defaultFile);
  let module: { default?: unknown };
  try {
    module = await importConfigFile(file);
  } catch (error) {
    throw new PlatformError([`${file}: cannot be loaded: ${(error as Error).message}`]);
  }
  if (typeof module.default !== 'object' || module.default === null) {
    throw new PlatformError([`${file}: the default export must be the result of defineConfig`]);
  }
  const platform = createPlatform(module.default as PlatformDeclaration, `${file}: `, dirname(file));
  return Object.freeze({ ...platform, conversions: { thread: conversionThread, file } });
}

/**
 * @param prefix of each problem, for example the file name
 * @param folder base of relative file paths
 * @throws PlatformError with all problems
 */
export function createPlatform(
  declaration: PlatformDeclaration,
  prefix = '',
  folder = process.cwd(),
): Platform {
  const problems: string[] = [];
  const report: Report = (place, reason) => problems.push(`${prefix}${place}: ${reason}`);
  reportUnknown(declaration, sections, '', report);
  const collections = compileCollections(declaration.collections ?? [], report);
  const declaredKinds = checkKinds(declaration.eventKinds ?? [], report);
  const eventKinds = [...(problems.length === 0 ? collections.flatMap(kindsOf) : []), ...declaredKinds];
  reportDuplicates(
    eventKinds.map((kind) => kind.name),
    'eventKinds',
    report,
  );
  const oauth = readOAuthSettings(declaration.oauth, report);
  const webhooks = readWebhookSettings(declaration.webhooks, report);
  const apps = readAppSettings(declaration.apps, report);
  const accounts = readAccountSettings(declaration.accounts, report);
  if (accounts.login !== null && oauth.password) {
    report(
      'oauth.password',
      'cannot be combined with accounts.login: Nuncio does not know the passwords of these users',
    );
  }
  const mcp = readMcpSettings(declaration.mcp, report);
  const retention = readRetention(declaration.retention, report);
  const tools = readDefinedTools(
    declaration.tools,
    { reservedObjects, resources: oauth.resources, allow: webhooks.allow },
    report,
  );
  if (mcp.enabled && problems.length === 0) checkTools(collections, tools, mcp, report);
  const brand = readBrand(declaration.brand, folder, report);
  const startUrl = readStartUrl(declaration.startUrl, report);
  if (problems.length === 0) checkShapes(eventKinds, report);
  if (problems.length > 0) throw new PlatformError(problems);
  const objects = [
    ...collections.map((type) => type.scope),
    ...eventKinds.map((kind) => kind.object),
    ...tools.map((tool) => tool.object),
  ];
  return Object.freeze({
    collections,
    eventKinds,
    objects: [...new Set(objects.filter((object) => object !== null))].sort(),
    oauth,
    webhooks,
    apps,
    accounts,
    mcp,
    retention,
    tools,
    brand,
    startUrl,
    conversions: null,
  });
}

const loopbackHosts = new Set(['localhost', '127.0.0.1', '[::1]']);

function readStartUrl(declared: unknown, report: Report): string | null {
  if (declared === undefined) return null;
  const url = typeof declared === 'string' ? URL.parse(declared) : null;
  const isSafe = url?.protocol === 'https:' || (url?.protocol === 'http:' && loopbackHosts.has(url.hostname));
  if (url !== null && isSafe && url.username === '' && url.password === '') return url.href;
  report(
    'startUrl',
    'must be a URL that begins with https://, or with http:// on loopback, without credentials',
  );
  return null;
}

function compileCollections(declared: readonly Collection[], report: Report): ResourceType[] {
  if (!Array.isArray(declared)) {
    report('collections', 'must be an array');
    return [];
  }
  if (declared.length > collectionsMax) report('collections', `must have at most ${collectionsMax} entries`);
  const types = declared.flatMap((value: unknown, index) => {
    const declaration = readCollection(value);
    if (declaration === undefined) {
      report(`collections[${index}]`, 'must be the result of defineCollection');
      return [];
    }
    const place = `collections.${declaration.name}`;
    if (reservedNames.has(declaration.name)) report(`${place}.name`, 'is reserved for the server');
    if (reservedObjects.has(declaration.scope)) report(`${place}.scope`, 'is reserved for the server');
    return [compileCollection(declaration, place, report)];
  });
  const all = types.flatMap(withChildren);
  reportDuplicates(
    all.map((type) => type.table),
    'collections',
    report,
  );
  reportDuplicates(
    all.map((type) => type.item),
    'collections',
    report,
  );
  return types;
}

function checkKinds(declared: readonly EventKind[], report: Report): EventKind[] {
  if (!Array.isArray(declared)) {
    report('eventKinds', 'must be an array');
    return [];
  }
  // One for all: compiling the schema of schemas takes longer than the rest.
  const ajv = new Ajv({ strict: false });
  addFormats.default(ajv);
  if (declared.length > eventKindsMax) report('eventKinds', `must have at most ${eventKindsMax} entries`);
  for (const kind of declared as readonly EventKind[]) {
    const place = `eventKinds.${kind.name}`;
    reportUnknown(kind, kindMembers, place, report);
    if (!/^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$/.test(kind.name) || kind.name.length > 100) {
      report(`${place}.name`, 'must be lower-case words separated by dots, at most 100 characters');
    }
    if (reservedKinds.has(kind.name)) report(`${place}.name`, 'is reserved for the server');
    if (kind.object !== null && !/^[a-z][a-z0-9_-]{0,29}$/.test(kind.object)) {
      report(`${place}.object`, 'must be the object of a scope (a lower-case word) or null');
    }
    checkExample(ajv, kind, place, report);
  }
  return [...declared];
}

/** Checks what kinds of collections declare, too: links to resources, and versions. */
function checkShapes(kinds: readonly EventKind[], report: Report): void {
  const ajv = new Ajv({ strict: false });
  addFormats.default(ajv);
  for (const kind of kinds) {
    const place = `eventKinds.${kind.name}`;
    const error = kind.resource === undefined ? undefined : templateError(kind.resource, kind.example);
    if (error !== undefined) report(`${place}.resource`, error);
    checkVersions(ajv, kind, place, report);
  }
}

function checkExample(ajv: Ajv, kind: EventKind, place: string, report: Report): void {
  try {
    if (!ajv.validate(kind.schema, kind.example)) {
      report(`${place}.example`, `does not match the schema: ${ajv.errorsText()}`);
    }
  } catch (error) {
    report(`${place}.schema`, `is not a valid schema: ${(error as Error).message}`);
  }
}

function reportDuplicates(names: readonly string[], place: string, report: Report): void {
  for (const name of new Set(names.filter((each, index) => names.indexOf(each) !== index))) {
    report(place, `${name} is declared twice`);
  }
}
