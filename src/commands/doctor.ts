/** `nuncio doctor`: looks for what is wrong with the installation. Exit codes: 0 no problem, 1 warnings, 2 errors. */

import { requireCollections } from '../collections/migrate.ts';
import { type Config, ConfigError, loadConfig } from '../config/config.ts';
import { environmentOfProcess, readEnvironment, unknownSettings } from '../config/environment.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { hasSchema, requireMigrated } from '../database/migrate.ts';
import { missingPublisherStatements } from '../database/publisher_role.ts';
import { diagnose } from '../doctor/doctor.ts';
import { readLocalMetrics } from '../doctor/node.ts';
import {
  type Check,
  check,
  countText,
  exitCodeOf,
  type Probe,
  type Report,
  reportOf,
} from '../doctor/report.ts';
import { loadSigningKeys } from '../oauth/signing_keys.ts';
import type { Command, CommandContext } from './command.ts';
import { loadCommandPlatform } from './command_platform.ts';
import { explainFailure } from './failure.ts';
import { printReport } from './print_report.ts';
import { openStorage, type Storage } from './storage.ts';

export const doctor: Command = {
  mayCreateDatabase: false,
  options: [
    ['--json', 'print the report as JSON'],
    ['--all', 'also list what is fine'],
  ],
  async run({ values }, context) {
    const report = await examineInstallation(context);
    printReport(report, values, context);
    return exitCodeOf(report);
  },
  runWithout(problems, { values }, context) {
    const report = reportOf([checkSettings(problems, 'error')]);
    printReport(report, values, context);
    return exitCodeOf(report);
  },
};

async function examineInstallation({ config }: CommandContext): Promise<Report> {
  const settings: Probe = { name: 'settings', run: async () => checkStart(config) };
  const platform: Probe = { name: 'platform', run: () => checkPlatform(config) };
  const opened = await open(config);
  const { storage, db } = opened;
  try {
    const more = [settings, platform, { name: 'database', run: async () => opened.found }];
    if (storage !== undefined && db !== undefined) {
      more.push({ name: 'schema', run: () => checkSchema(config, storage) });
      more.push({ name: 'secret', run: () => checkSecret(config, db, storage) });
    }
    return await diagnose({ config, db, metrics: () => readLocalMetrics(config), more });
  } finally {
    await db?.destroy();
    await storage?.close();
  }
}

/** Connects, and reports a database that cannot be used. */
async function open(config: Config): Promise<{ storage?: Storage; db?: Database; found: Check }> {
  const name = 'database';
  let storage: Storage | undefined;
  let db: Database | undefined;
  try {
    storage = await openStorage(config, 'command');
    const isThere = await hasSchema(storage.databaseUrl);
    if (!isThere) {
      const what = `the schema "${config.databaseSchema}" of the database is missing or empty`;
      const advice =
        'Run nuncio migrate, or set DATABASE_URL and NUNCIO_DATABASE_SCHEMA as the servers have them.';
      return { storage, found: check(name, 'error', what, advice) };
    }
    db = openDatabase({
      connectionString: storage.databaseUrl,
      connectionsMax: 1,
      connectionTimeoutMs: 15_000,
    });
    return { storage, db, found: check(name, 'ok', storage.description ?? 'the database can be reached') };
  } catch (error) {
    return { ...(storage && { storage }), found: failed(name, error, config) };
  }
}

/** The problem in the words of other commands, which also say what to do. */
function failed(name: string, error: unknown, config: Config): Check {
  const lines = explainFailure(error, config) ?? [(error as Error).message];
  const [summary = '', ...advice] = lines
    .join(' ')
    .split(/: (?=(?:set|run|start|correct|create|add|allow|use|restore|choose) )/);
  return check(name, 'error', summary, advice.length === 0 ? null : sentence(advice.join('; ')));
}

function sentence(text: string): string {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${text.endsWith('.') ? '' : '.'}`;
}

/** Reads the settings as `nuncio start` does, which demands more than other commands. */
function checkStart(config: Config): Check {
  const environment = environmentOfProcess();
  try {
    loadConfig(readEnvironment(environment), 'start', unknownSettings(environment), config.folder);
    return check('settings', 'ok', 'nuncio start accepts the settings');
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    // `nuncio dev` runs without them.
    return checkSettings(error.problems, config.databaseUrl === null ? 'warning' : 'error');
  }
}

function checkSettings(problems: readonly string[], state: 'warning' | 'error'): Check {
  const what = `nuncio start refuses ${problems.length === 1 ? 'a setting' : `${problems.length} settings`}`;
  return check('settings', state, `${what}: ${problems.join('; ')}`, 'See docs/settings.md.', {
    problems: problems.length,
  });
}

async function checkPlatform(config: Config): Promise<Check> {
  try {
    const { collections, eventKinds } = await loadCommandPlatform(config);
    const counts = `${countText(collections.length, 'collection')}, ${countText(eventKinds.length, 'event kind')}`;
    return check('platform', 'ok', `${config.configFile ?? 'the example platform'}: ${counts}`);
  } catch (error) {
    return failed('platform', error, config);
  }
}

async function checkSchema(config: Config, { databaseUrl }: Storage): Promise<Check[]> {
  try {
    await requireMigrated(databaseUrl);
    const platform = await loadCommandPlatform(config).catch(() => undefined);
    if (platform !== undefined) await requireCollections(databaseUrl, platform.collections);
  } catch (error) {
    return [failed('schema', error, config)];
  }
  const statements = await missingPublisherStatements(databaseUrl);
  const missing = check(
    'schema.publisher',
    'notice',
    'applications cannot publish by SQL yet, because a role or its privileges are missing',
    `A database administrator runs: ${statements.join(' ')}`,
  );
  return [check('schema', 'ok', 'the schema is up to date'), ...(statements.length > 0 ? [missing] : [])];
}

async function checkSecret(config: Config, db: Database, storage: Storage): Promise<Check> {
  try {
    await loadSigningKeys(db, storage.secret);
    return check('secret', 'ok', 'the secret opens the keys in the database');
  } catch (error) {
    return failed('secret', error, config);
  }
}
