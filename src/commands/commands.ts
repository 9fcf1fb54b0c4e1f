/**
 * The table of commands, in the order in which they are shown. A command is loaded when it is called: none waits for
 * what another needs.
 */

import type { Command } from './command.ts';

export interface CommandEntry {
  /** Words divided by a space, like `user create`. */
  name: string;
  /** One line for the list of commands. */
  summary: string;
  load: () => Promise<Command>;
}

export const commands: readonly CommandEntry[] = [
  {
    name: 'dev',
    summary: 'run the server in development mode (what npm start does)',
    load: async () => (await import('./dev.ts')).dev,
  },
  {
    name: 'start',
    summary: 'run the server (production settings)',
    load: async () => (await import('./start.ts')).start,
  },
  {
    name: 'migrate',
    summary: 'bring the schema of the database up to date',
    load: async () => (await import('./migrate.ts')).migrateCommand,
  },
  {
    name: 'user create',
    summary: 'create a user',
    load: async () => (await import('./user_create.ts')).userCreate,
  },
  {
    name: 'user password',
    summary: 'give a user (id or e-mail address) another password, and sign them out everywhere',
    load: async () => (await import('./user_password.ts')).userPassword,
  },
  {
    name: 'user disable',
    summary: 'lock a user out, and stop every app that acts for them',
    load: async () => (await import('./user_disable.ts')).userDisable,
  },
  {
    name: 'user enable',
    summary: 'let a disabled user sign in again',
    load: async () => (await import('./user_enable.ts')).userEnable,
  },
  {
    name: 'client create',
    summary: 'register an app (client); its secret is shown this once',
    load: async () => (await import('./client_create.ts')).clientCreate,
  },
  {
    name: 'client list',
    summary: 'list the registered apps',
    load: async () => (await import('./client_list.ts')).clientList,
  },
  {
    name: 'client delete',
    summary: 'delete an app: its grants, tokens and subscriptions end with it',
    load: async () => (await import('./client_delete.ts')).clientDelete,
  },
  {
    name: 'client invite',
    summary: 'make a token with which somebody may register an app; it is shown this once',
    load: async () => (await import('./client_invite.ts')).clientInvite,
  },
  {
    name: 'logout list',
    summary: 'list what apps were told of users who signed out, and what they could not be told',
    load: async () => (await import('./logout_list.ts')).logoutList,
  },
  {
    name: 'client rotate-secret',
    summary: 'give an app another secret; the one before works a while longer',
    load: async () => (await import('./client_rotate_secret.ts')).clientRotateSecret,
  },
  {
    name: 'keys rotate',
    summary: 'replace the signing keys without a moment in which a valid token is refused',
    load: async () => (await import('./keys_rotate.ts')).keysRotate,
  },
  {
    name: 'epoch begin',
    summary: 'after a snapshot was restored: give new deliveries ids that no lost one had',
    load: async () => (await import('./epoch_begin.ts')).epochBegin,
  },
  {
    name: 'parked list',
    summary: 'list events that could not become deliveries and were set aside, with the reason',
    load: async () => (await import('./parked_list.ts')).parkedList,
  },
  {
    name: 'parked retry',
    summary: 'have parked events become deliveries after all',
    load: async () => (await import('./parked_retry.ts')).parkedRetry,
  },
  {
    name: 'rejected list',
    summary: 'list events that were published by SQL and refused, with the reason',
    load: async () => (await import('./rejected_list.ts')).rejectedList,
  },
  {
    name: 'rejected retry',
    summary: 'check rejected events again, one of them perhaps with a corrected body',
    load: async () => (await import('./rejected_retry.ts')).rejectedRetry,
  },
  {
    name: 'rejected discard',
    summary: 'give a rejected event up',
    load: async () => (await import('./rejected_discard.ts')).rejectedDiscard,
  },
  {
    name: 'audit',
    summary: 'show what was granted, withdrawn, registered and issued',
    load: async () => (await import('./audit.ts')).audit,
  },
  {
    name: 'trigger',
    summary: 'publish the example event of a kind, to try what receives it',
    load: async () => (await import('./trigger.ts')).trigger,
  },
];
