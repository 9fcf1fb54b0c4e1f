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

type Row = readonly [name: string, summary: string, load: () => Promise<Command>];

const rows: readonly Row[] = [
  ['dev', 'run the server in development mode (npm start)', async () => (await import('./dev.ts')).dev],
  ['start', 'run the server with production settings', async () => (await import('./start.ts')).start],
  [
    'migrate',
    'bring the database schema up to date',
    async () => (await import('./migrate.ts')).migrateCommand,
  ],
  ['user create', 'create a user', async () => (await import('./user_create.ts')).userCreate],
  [
    'user password',
    'set the password of a user (id or e-mail address) and end their sessions',
    async () => (await import('./user_password.ts')).userPassword,
  ],
  [
    'user disable',
    'disable a user: end their sessions and withdraw their grants',
    async () => (await import('./user_disable.ts')).userDisable,
  ],
  ['user enable', 'enable a disabled user', async () => (await import('./user_enable.ts')).userEnable],
  [
    'client create',
    'register an app (client); its secret is shown only once',
    async () => (await import('./client_create.ts')).clientCreate,
  ],
  ['client list', 'list registered apps', async () => (await import('./client_list.ts')).clientList],
  [
    'client delete',
    'delete an app with its grants, tokens and subscriptions',
    async () => (await import('./client_delete.ts')).clientDelete,
  ],
  [
    'client invite',
    'create a token for registering apps; it is shown only once',
    async () => (await import('./client_invite.ts')).clientInvite,
  ],
  [
    'logout list',
    'list back-channel logout notices and their outcome',
    async () => (await import('./logout_list.ts')).logoutList,
  ],
  [
    'client rotate-secret',
    'rotate the secret of an app; the previous one stays valid for a while',
    async () => (await import('./client_rotate_secret.ts')).clientRotateSecret,
  ],
  [
    'keys rotate',
    'rotate the signing keys without invalidating tokens',
    async () => (await import('./keys_rotate.ts')).keysRotate,
  ],
  [
    'doctor connect',
    'play clients against the server at a URL from outside, and say what is wrong',
    async () => (await import('./doctor_connect.ts')).doctorConnect,
  ],
  [
    'doctor',
    'look for what is wrong with the installation, and say what to do',
    async () => (await import('./doctor.ts')).doctor,
  ],
  [
    'backup',
    'write a verified backup of the embedded database, also while its server runs',
    async () => (await import('./backup.ts')).backup,
  ],
  [
    'restore',
    'restore a backup of the embedded database into an empty data directory',
    async () => (await import('./restore.ts')).restore,
  ],
  [
    'epoch begin',
    'after restoring a snapshot: begin an epoch, so that new deliveries get new ids',
    async () => (await import('./epoch_begin.ts')).epochBegin,
  ],
  [
    'parked list',
    'list parked events, which fan-out could not process, with the reason',
    async () => (await import('./parked_list.ts')).parkedList,
  ],
  ['parked retry', 'retry parked events', async () => (await import('./parked_retry.ts')).parkedRetry],
  [
    'rejected list',
    'list events that were published by SQL and failed validation, with the reason',
    async () => (await import('./rejected_list.ts')).rejectedList,
  ],
  [
    'rejected retry',
    'retry rejected events, or one of them with a corrected body',
    async () => (await import('./rejected_retry.ts')).rejectedRetry,
  ],
  [
    'rejected discard',
    'discard a rejected event',
    async () => (await import('./rejected_discard.ts')).rejectedDiscard,
  ],
  ['audit', 'print the audit log', async () => (await import('./audit.ts')).audit],
  [
    'connections',
    'print what happened when apps tried to connect, step by step',
    async () => (await import('./connections.ts')).connections,
  ],
  [
    'listen',
    'receive your events on this machine and forward them to a local URL',
    async () => (await import('./listen.ts')).listen,
  ],
  [
    'trigger',
    'publish the example event of a kind, to test subscribers',
    async () => (await import('./trigger.ts')).trigger,
  ],
];

export const commands: readonly CommandEntry[] = rows.map(([name, summary, load]) => ({
  name,
  summary,
  load,
}));
