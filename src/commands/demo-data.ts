/**
 * The demo user and the demo client of development mode.
 */
import type { Config } from '../config/config.ts';
import type { Database } from '../database/database.ts';

export const demoUser = { email: 'demo@example.com', password: 'demo-password', name: 'Demo User' };
export async function ensureDemo(_db: Database, _config: Config, _secret: Buffer): Promise<string> {
  return '';
}
