/** Tables of settings: environment variables, and the sections of `nuncio.config.ts`. */

import { readSettings, type Setting } from './doc_comments.ts';
import { code, linkDocuments, table } from './markdown.ts';

/** Where the settings of each table are declared, by its name in the document. */
const declarations: Readonly<Record<string, readonly [document: string, file: string, start: string]>> = {
  variables: ['settings.md', 'src/config/environment.ts', 'const names = ['],
  oauth: ['platform.md', 'src/oauth/settings.ts', 'export interface OAuthSettings {'],
  apps: ['platform.md', 'src/apps/settings.ts', 'export interface AppSettings {'],
  accounts: ['platform.md', 'src/accounts/settings.ts', 'export interface AccountDeclaration {'],
  upstream: [
    'platform.md',
    'src/accounts/upstream/provider_settings.ts',
    'export interface UpstreamDeclaration {',
  ],
  mcp: ['platform.md', 'src/mcp/settings.ts', 'export interface McpDeclaration {'],
  brand: ['platform.md', 'src/web/brand.ts', 'export interface BrandDeclaration {'],
  webhooks: ['platform.md', 'src/webhooks/settings.ts', 'export interface WebhookDeclaration {'],
  quotas: ['platform.md', 'src/webhooks/subscriptions/quotas.ts', 'export interface Quotas {'],
};

export interface GeneratedTable {
  document: string;
  name: string;
  text: string;
}

export function settingTables(): GeneratedTable[] {
  return Object.entries(declarations).map(([name, [document, file, start]]) => ({
    document,
    name,
    text: settingTable(readSettings(file, start), document, name === 'variables' ? 'variable' : 'property'),
  }));
}

function settingTable(settings: readonly Setting[], document: string, what: string): string {
  const hasDefaults = settings.some((setting) => setting.default !== '');
  const rows = settings.map((setting) => {
    const names = setting.names.map(code).join(', ');
    const meaning = linkDocuments(setting.meaning, document);
    return hasDefaults ? [names, meaning, linkDocuments(setting.default, document)] : [names, meaning];
  });
  return table([what, 'meaning', ...(hasDefaults ? ['default'] : [])], rows);
}

/** The settings of a table, for tests. */
export function declaredSettings(name: string): Setting[] {
  const [, file = '', start = ''] = declarations[name] ?? [];
  return readSettings(file, start);
}
