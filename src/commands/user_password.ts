/**
 * `nuncio user password`: resets a user's password and ends what someone with the old one may have set up. Signs the user out
 * everywhere, disconnects their identities of OpenID providers and disables their own subscriptions. Grants of apps remain,
 * and are listed.
 */

import { type Account, changePassword, findAnyAccount } from '../accounts/account.ts';
import {
  type ConnectedIdentity,
  disconnectIdentities,
  listIdentities,
} from '../accounts/upstream/identity.ts';
import type { Transaction } from '../database/database.ts';
import { withAccountHold } from '../grants/delivery_hold.ts';
import { type ConnectedApp, listAllConnectedApps } from '../oauth/connected_apps.ts';
import { endSessions } from '../oauth/storage/end_sessions.ts';
import { disableOfUser, type UserSubscription } from '../webhooks/subscriptions/subscription_state.ts';
import { type Command, CommandError } from './command.ts';
import { passwordHelp, readPassword } from './password_option.ts';
import { withDatabase } from './storage.ts';

export const userPassword: Command = {
  options: [
    passwordHelp,
    [
      '--keep-identities',
      'the connected accounts of OpenID providers are the user’s: do not disconnect them',
    ],
    ['--keep-subscriptions', 'the user’s own subscriptions are theirs: do not disable them'],
    ['--json', 'print JSON'],
  ],
  positionals: ['USER'],
  async run({ values, positionals }, { config, print }) {
    const user = positionals[0] as string;
    const password = await readPassword(values);
    const kept = {
      identities: values['keep-identities'] === true,
      subscriptions: values['keep-subscriptions'] === true,
    };
    const reset = await withDatabase(config, async (db) => {
      const account = await findAnyAccount(db, user);
      if (account === undefined) throw new CommandError(`user "${user}" not found`);
      return withAccountHold(db, account.id, (tx) => resetPassword(tx, account, password, kept));
    });
    for (const line of values.json === true ? [toJson(reset, kept)] : toLines(reset, kept)) print(line);
  },
};

interface Kept {
  identities: boolean;
  subscriptions: boolean;
}

interface Reset {
  account: Account;
  identities: ConnectedIdentity[];
  subscriptions: UserSubscription[];
  apps: ConnectedApp[];
}

async function resetPassword(
  tx: Transaction,
  account: Account,
  password: string,
  kept: Kept,
): Promise<Reset> {
  await changePassword(tx, account.id, password);
  // First the sessions: requests that are in progress cannot add an identity or a subscription after this.
  await endSessions(tx, account.id);
  const identities = await listIdentities(tx, account.id);
  if (!kept.identities) await disconnectIdentities(tx, account.id);
  const subscriptions = await disableOfUser(tx, account.id, !kept.subscriptions);
  return { account, identities, subscriptions, apps: await listAllConnectedApps(tx, account.id) };
}

function toLines({ account, identities, subscriptions, apps }: Reset, kept: Kept): string[] {
  const identity = kept.identities ? 'kept identity' : 'disconnected identity';
  return [
    `changed the password of ${account.email ?? account.id} and ended all their sessions`,
    ...identities.map(
      ({ issuer, label, createdAt }) => `${identity} ${label} of ${issuer}${since(createdAt)}`,
    ),
    ...subscriptions.map(
      ({ id, url, state, createdAt }) => `${state} subscription ${id} to ${url}${since(createdAt)}`,
    ),
    ...apps.map(({ clientId, name, since: at }) => `connected app ${name} (${clientId})${since(at)}`),
  ];
}

function since(at: Date): string {
  return `, since ${at.toISOString()}`;
}

function toJson({ account, identities, subscriptions, apps }: Reset, kept: Kept): string {
  return JSON.stringify({
    id: account.id,
    email: account.email,
    identities: identities.map(({ provider, issuer, subject, label, createdAt }) => ({
      provider,
      issuer,
      subject,
      label,
      created_at: createdAt.toISOString(),
      disconnected: !kept.identities,
    })),
    subscriptions: subscriptions.map(({ createdAt, ...subscription }) => ({
      ...subscription,
      created_at: createdAt.toISOString(),
    })),
    apps: apps.map(({ clientId, name, scopes, since: at }) => ({
      client_id: clientId,
      name,
      scopes,
      created_at: at.toISOString(),
    })),
  });
}
