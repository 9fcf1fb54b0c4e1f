/** What a developer can try next in this installation: the banner of `nuncio dev` and its start page name nothing else. */

import { resolve } from 'node:path';
import { kindsOf } from '../collections/kinds.ts';
import type { Config } from '../config/config.ts';
import { findConfigFile } from '../config/config_file.ts';
import { defaultSchema } from '../database/schema.ts';
import type { Platform } from '../platform.ts';
import type { Tour } from '../web/start_page.ts';
import { demoClientId, demoUser } from './demo_data.ts';

/** The published package is JavaScript, without the examples. */
const isInstalled = !import.meta.filename.endsWith('.ts');

/** @param hasUser whether the demo user exists */
export function createTour(platform: Platform, hasUser: boolean): Tour {
  const hasArticles = platform.eventKinds.some(({ name }) => name === 'article.published');
  return {
    user: hasUser ? demoUser : null,
    loginUrl: platform.accounts.login?.url ?? null,
    command: isInstalled ? 'npx nuncio' : 'npm run -s nuncio --',
    demo: !isInstalled && hasUser && hasArticles ? 'npm run demo' : null,
    kind: kindToTry(platform),
  };
}

/** A kind that other systems publish, or else one of a collection. */
function kindToTry({ collections, eventKinds }: Platform): string | null {
  const ofCollections = new Set(collections.flatMap(kindsOf).map(({ name }) => name));
  const kind = eventKinds.find(({ name }) => !ofCollections.has(name)) ?? eventKinds[0];
  return kind?.name ?? null;
}

/** @param clientSecret of the demo client; null if there is none */
export function nextSteps(config: Config, tour: Tour, clientSecret: string | null): string {
  const { baseUrl } = config;
  const lines = [
    '',
    `  Nuncio runs at  ${baseUrl}`,
    `  Console         ${baseUrl}/console`,
    `  Reference       ${baseUrl}/docs`,
    `  Platform        ${config.configFile ?? `the example, because there is no nuncio.config.ts in ${config.folder}`}`,
  ];
  if (tour.user !== null) lines.push(`  Demo user       ${tour.user.email}  password  ${tour.user.password}`);
  else if (tour.loginUrl !== null) lines.push(`  Sign-in         by your application at ${tour.loginUrl}`);
  else lines.push('  No demo user and client: the server is reachable from other computers.');
  const steps = stepsOf(config, tour, clientSecret);
  if (steps.length === 0) return [...lines, ''].join('\n');
  const settings = settingsOf(config);
  const same = settings.length === 0 ? '' : `, with the same ${settings.join(', ')}`;
  return [...lines, '', `  Try it from another terminal${same}:`, ...steps, ''].join('\n');
}

function stepsOf({ baseUrl }: Config, tour: Tour, clientSecret: string | null): string[] {
  const steps: [command: string, meaning: string][] = [];
  if (clientSecret !== null) {
    const curl = `curl -u ${demoClientId}:${clientSecret} -d grant_type=client_credentials ${baseUrl}/oauth/token`;
    steps.push([curl, '']);
  }
  if (tour.demo !== null) steps.push([tour.demo, 'an app that a user connects and that receives webhooks']);
  if (tour.kind !== null && tour.user !== null)
    steps.push([`${tour.command} trigger ${tour.kind}`, 'publishes an example event for the demo user']);
  return steps.map(([command, meaning]) => `    ${command}${meaning === '' ? '' : `      ${meaning}`}`);
}

/** The settings that decide which database and platform a command uses, if they differ from the defaults. */
function settingsOf({ dataDir, databaseUrl, databaseSchema, configFile, port, folder }: Config): string[] {
  return [
    ...(databaseUrl === null
      ? dataDir === resolve(folder, 'data')
        ? []
        : ['NUNCIO_DATA_DIR']
      : ['DATABASE_URL', ...(port === 3000 ? [] : ['PORT'])]),
    ...(databaseSchema === defaultSchema ? [] : ['NUNCIO_DATABASE_SCHEMA']),
    ...(configFile === findConfigFile(folder) ? [] : ['NUNCIO_CONFIG']),
  ];
}
