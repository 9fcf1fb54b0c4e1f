/**
 * The table of commands, in the order in which they are shown.
 */

import type { Command } from './command.ts';
import { dev } from './dev.ts';
import { migrateCommand } from './migrate.ts';
import { start } from './start.ts';

export const commands: readonly Command[] = [dev, start, migrateCommand];
