/**
 * The table of commands, in the order in which they are shown.
 */

import { clientCreate } from './client_create.ts';
import { clientDelete } from './client_delete.ts';
import { clientList } from './client_list.ts';
import type { Command } from './command.ts';
import { dev } from './dev.ts';
import { migrateCommand } from './migrate.ts';
import { start } from './start.ts';
import { userCreate } from './user_create.ts';

export const commands: readonly Command[] = [
  dev,
  start,
  migrateCommand,
  userCreate,
  clientCreate,
  clientList,
  clientDelete,
];
