/**
 * The platform: what an operator declares in `nuncio.config.ts`, read, checked and worked out. Every problem is
 * found before any is reported, each with its place and the reason.
 */

import { dirname, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { Ajv } from 'ajv';
import addFormats from 'ajv-formats';
import { type AccountDeclaration, type AccountSettings, readAccountSettings } from './accounts/settings.ts';
import { type AppSettings, readAppSettings } from './apps/settings.ts';
import { compileCollection, type Report } from './collections/compile.ts';
import { type Collection, readCollection } from './collections/declaration.ts';
import { kindsOf } from './collections/kinds.ts';
import { type ResourceType, withChildren } from './collections/resource_type.ts';
import type { EventKind } from './events/kind.ts';
import { type OAuthSettings, readOAuthSettings } from './oauth/settings.ts';
import { type Brand, type BrandDeclaration, readBrand } from './web/brand.ts';
import { readWebhookSettings, type WebhookDeclaration, type WebhookSettings } from './webhooks/settings.ts';

/** What `nuncio.config.ts` exports by default. */
export interface PlatformDeclaration {
  collections?: readonly Collection[];
  /** Kinds beside those of the collections: what other systems publish. */
  eventKinds?: readonly EventKind[];
  /** What is not as shipped in the authorization server. */
  oauth?: Partial<OAuthSettings>;
  /** What is to be different of the webhooks. */
  webhooks?: WebhookDeclaration;
  /** Who may make apps, and whether they are reviewed. */
  apps?: Partial<AppSettings>;
  /** Whose users the accounts are, and how they sign in. */
  accounts?: AccountDeclaration;
  /** Name, logo, colour and links of the operator, on every page. */
  brand?: BrandDeclaration;
  /** Where the base URL leads: the operator's own page, `https`, or `http` on loopback. Left out: a page of the server. */
  startUrl?: string;
}

export interface Platform {
  collections: readonly ResourceType[];
  /** All kinds: those of the collections, then the declared ones. */
  eventKinds: readonly EventKind[];
  /** The objects of `read:<object>` and `write:<object>` scopes that the declaration brings, sorted. */
  objects: readonly string[];
  oauth: OAuthSettings;
  webhooks: WebhookSettings;
  apps: AppSettings;
  accounts: AccountSettings;
  brand: Brand;
  startUrl: string | null;
}

/** A declaration that cannot be used: one line for each problem. */
export class PlatformError extends Error {
  override readonly name = 'PlatformError';
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join('\n'));
    this.problems = problems;
  }
}

/** Declares the platform; the default export of `nuncio.config.ts`. */
export function defineConfig(declaration: PlatformDeclaration): PlatformDeclaration {
  return Object.freeze({ ...declaration });
}

/** First parts of paths and names of tables that are the server's own. */
const reservedNames = new Set(
  `access_tokens account account_links accounts admin api app_invitations app_logos app_members apps assets asyncapi attempt_bytes attempts audit_entries authorization_codes
  client_secrets clients collections console database_epochs deleted_accounts deliveries delivery_hold_acknowledgements delivery_holds delivery_keys delivery_stats device device_codes docs event_ids event_kinds
  events failing_warnings grants health held_ranges idempotency_keys inbox initial_access_tokens intake interaction interactions lane_epochs lane_progress lanes livez
  login login_requests login_sessions logout_notices meta metrics migrations nodes oauth openapi outbox parked_events public pushed_requests
  rate_windows readyz recoveries refresh_tokens registration_access_tokens registration_tokens registration_windows rejected_events retention_day retries sessions sign_in_failures signing_keys
  subscription_revisions subscriptions token used_proofs webhooks withdrawals`.split(/\s+/),
);
/** Names of kinds that the server itself has. */
const reservedKinds = new Set(['ping', 'subscription.disabled', 'subscription.failing']);
/** Objects of scopes that have a meaning of their own. */
const reservedObjects = new Set(['webhooks', 'events', 'tokens', 'apps', 'accounts', 'logins']);
/** Collections and event kinds at most. */
const collectionsMax = 200;
const eventKindsMax = 2_000;

/** The file that is read where none is named: the one beside package.json, or what the build has made of it. */
const defaultFile = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../nuncio.config.ts' : './nuncio.config.js', import.meta.url),
);

/**
 * @param configFile absolute path, or null for the shipped example
 * @throws PlatformError with every problem found
 */
export async function loadPlatform(configFile: string | null): Promise<Platform> {
  const file = resolve(configFile ?? defaultFile);
  let module: { default?: unknown };
  try {
    module = (await import(pathToFileURL(file).href)) as { default?: unknown };
  } catch (error) {
    throw new PlatformError([`${file}: it cannot be loaded: ${(error as Error).message}`]);
  }
  if (typeof module.default !== 'object' || module.default === null) {
    throw new PlatformError([`${file}: its default export is not made by defineConfig`]);
  }
  return createPlatform(module.default as PlatformDeclaration, `${file}: `, dirname(file));
}

/**
 * @param prefix what each problem begins with, like the file's name
 * @param folder where files that are declared by relative paths are
 * @throws PlatformError with every problem found
 */
export function createPlatform(
  declaration: PlatformDeclaration,
  prefix = '',
  folder = process.cwd(),
): Platform {
  const problems: string[] = [];
  const report: Report = (place, reason) => problems.push(`${prefix}${place}: ${reason}`);
  for (const key of Object.keys(declaration)) {
    if (
      !['collections', 'eventKinds', 'oauth', 'webhooks', 'apps', 'accounts', 'brand', 'startUrl'].includes(
        key,
      )
    )
      report(key, 'there is no such section');
  }
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
    report('oauth.password', 'users sign in at `accounts.login`: there is no password here to ask for');
  }
  const brand = readBrand(declaration.brand, folder, report);
  const startUrl = readStartUrl(declaration.startUrl, report);
  if (problems.length > 0) throw new PlatformError(problems);
  const objects = [...collections.map((type) => type.scope), ...eventKinds.map((kind) => kind.object)];
  return Object.freeze({
    collections,
    eventKinds,
    objects: [...new Set(objects.filter((object) => object !== null))].sort(),
    oauth,
    webhooks,
    apps,
    accounts,
    brand,
    startUrl,
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
    'it may be a URL that begins with https://, or with http:// on loopback, without credentials',
  );
  return null;
}

function compileCollections(declared: readonly Collection[], report: Report): ResourceType[] {
  if (!Array.isArray(declared)) {
    report('collections', 'it may be an array');
    return [];
  }
  if (declared.length > collectionsMax) report('collections', `there are more than ${collectionsMax}`);
  const types = declared.flatMap((value: unknown, index) => {
    const declaration = readCollection(value);
    if (declaration === undefined) {
      report(`collections[${index}]`, 'it is not made by defineCollection');
      return [];
    }
    const place = `collections.${declaration.name}`;
    if (reservedNames.has(declaration.name)) report(`${place}.name`, 'the server itself uses that name');
    if (reservedObjects.has(declaration.scope))
      report(`${place}.scope`, 'the server itself uses that object');
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
    report('eventKinds', 'it may be an array');
    return [];
  }
  if (declared.length > eventKindsMax) report('eventKinds', `there are more than ${eventKindsMax}`);
  for (const kind of declared as readonly EventKind[]) {
    const place = `eventKinds.${kind.name}`;
    if (!/^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$/.test(kind.name) || kind.name.length > 100) {
      report(`${place}.name`, 'it may be lower-case words divided by dots, at most 100 characters');
    }
    if (reservedKinds.has(kind.name)) report(`${place}.name`, 'the server itself has that kind');
    if (kind.object !== null && !/^[a-z][a-z0-9_-]{0,29}$/.test(kind.object)) {
      report(`${place}.object`, 'it is the object of a scope: a lower-case word, or null');
    }
    checkExample(kind, place, report);
  }
  return [...declared];
}

function checkExample(kind: EventKind, place: string, report: Report): void {
  const ajv = new Ajv({ strict: false });
  addFormats.default(ajv);
  try {
    if (!ajv.validate(kind.schema, kind.example)) {
      report(`${place}.example`, `it does not fit the schema: ${ajv.errorsText()}`);
    }
  } catch (error) {
    report(`${place}.schema`, `it cannot be used: ${(error as Error).message}`);
  }
}

function reportDuplicates(names: readonly string[], place: string, report: Report): void {
  for (const name of new Set(names.filter((each, index) => names.indexOf(each) !== index))) {
    report(place, `${name} is declared twice`);
  }
}
