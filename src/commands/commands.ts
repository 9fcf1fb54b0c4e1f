/**
 * The table of commands in display order. A command's module is loaded when the command runs, so that no command waits for
 * the imports of another.
 */

import type { Command } from './command.ts';

export interface CommandEntry {
  /** Words separated by a space, for example `user create`. */
  name: string;
  /** One line for the list of commands. */
  summary: string;
  load: () => Promise<Command>;
}

export const commands: readonly CommandEntry[] = [
  {
    name: 'dev',
    summary: 'run the server in development mode (npm start)',
    load: async () => (await import('./dev.ts')).dev,
  },
  {
    name: 'start',
    summary: 'run the server with production settings',
    load: async () => (await import('./start.ts')).start,
  },
  {
    name: 'migrate',
    summary: 'bring the database schema up to date',
    load: async () => (await import('./migrate.ts')).migrateCommand,
  },
  {
    name: 'user create',
    summary: 'create a user',
    load: async () => (await import('./user_create.ts')).userCreate,
  },
  {
    name: 'user password',
    summary: 'set the password of a user (id or e-mail address) and end their sessions',
    load: async () => (await import('./user_password.ts')).userPassword,
  },
  {
    name: 'user disable',
    summary: 'disable a user: end their sessions and withdraw their grants',
    load: async () => (await import('./user_disable.ts')).userDisable,
  },
  {
    name: 'user enable',
    summary: 'enable a disabled user',
    load: async () => (await import('./user_enable.ts')).userEnable,
  },
  {
    name: 'client create',
    summary: 'register an app (client); its secret is shown only once',
    load: async () => (await import('./client_create.ts')).clientCreate,
  },
  {
    name: 'client list',
    summary: 'list registered apps',
    load: async () => (await import('./client_list.ts')).clientList,
  },
  {
    name: 'client delete',
    summary: 'delete an app with its grants, tokens and subscriptions',
    load: async () => (await import('./client_delete.ts')).clientDelete,
  },
  {
    name: 'client invite',
    summary: 'create a token for registering apps; it is shown only once',
    load: async () => (await import('./client_invite.ts')).clientInvite,
  },
  {
    name: 'logout list',
    summary: 'list back-channel logout notices and their outcome',
    load: async () => (await import('./logout_list.ts')).logoutList,
  },
  {
    name: 'client rotate-secret',
    summary: 'rotate the secret of an app; the previous one stays valid for a while',
    load: async () => (await import('./client_rotate_secret.ts')).clientRotateSecret,
  },
  {
    name: 'keys rotate',
    summary: 'rotate the signing keys without invalidating tokens',
    load: async () => (await import('./keys_rotate.ts')).keysRotate,
  },
  {
    name: 'epoch begin',
    summary: 'after restoring a snapshot: begin an epoch, so that new deliveries get new ids',
    load: async () => (await import('./epoch_begin.ts')).epochBegin,
  },
  {
    name: 'parked list',
    summary: 'list parked events, which fan-out could not process, with the reason',
    load: async () => (await import('./parked_list.ts')).parkedList,
  },
  {
    name: 'parked retry',
    summary: 'retry parked events',
    load: async () => (await import('./parked_retry.ts')).parkedRetry,
  },
  {
    name: 'rejected list',
    summary: 'list events that were published by SQL and failed validation, with the reason',
    load: async () => (await import('./rejected_list.ts')).rejectedList,
  },
  {
    name: 'rejected retry',
    summary: 'retry rejected events, or one of them with a corrected body',
    load: async () => (await import('./rejected_retry.ts')).rejectedRetry,
  },
  {
    name: 'rejected discard',
    summary: 'discard a rejected event',
    load: async () => (await import('./rejected_discard.ts')).rejectedDiscard,
  },
  {
    name: 'audit',
    summary: 'print the audit log',
    load: async () => (await import('./audit.ts')).audit,
  },
  {
    name: 'trigger',
    summary: 'publish the example event of a kind, to test subscribers',
    load: async () => (await import('./trigger.ts')).trigger,
  },
];
