/** JSON representations of apps, secrets, members and invitations. */

import type { App } from '../../apps/app.ts';
import type { Invitation, ReceivedInvitation } from '../../apps/invitation.ts';
import type { Member } from '../../apps/member.ts';
import { shownMetadata } from '../../apps/metadata.ts';
import type { AppSecret } from '../../apps/secret.ts';
import { type Client, logoPath } from '../../clients/client.ts';

type Json = Record<string, unknown>;

export function appPath(id: string): string {
  return `/apps/${encodeURIComponent(id)}`;
}

/** The properties that `/apps` and `/admin/apps` share. */
export function representClient(client: Client): Json {
  return {
    client_id: client.id,
    client_id_issued_at: Math.floor(client.createdAt.getTime() / 1_000),
    ...shownMetadata(client),
    state: client.state,
    origin: client.origin,
    created_at: client.createdAt.toISOString(),
    updated_at: client.updatedAt.toISOString(),
  };
}

/** The link to the logo; none if there is no logo to show. */
export function logoLink(client: Client): Json {
  const path = logoPath(client);
  return path === null ? {} : { logo: { href: path } };
}

export function representApp({ client, role }: App, secrets: readonly AppSecret[]): Json {
  const self = appPath(client.id);
  return {
    ...representClient(client),
    role,
    secrets: secrets.map((secret) => representSecret(client.id, secret)),
    _links: {
      self: { href: self },
      members: { href: `${self}/members` },
      subscriptions: { href: `${self}/subscriptions` },
      health: { href: `${self}/health` },
      ...(client.origin === 'account' ? { secrets: { href: `${self}/secrets`, method: 'POST' } } : {}),
      ...logoLink(client),
    },
  };
}

export function representSecret(clientId: string, secret: AppSecret): Json {
  return {
    id: secret.id,
    created_at: secret.createdAt.toISOString(),
    created_by: secret.createdBy,
    expires_at: secret.expiresAt?.toISOString() ?? null,
    _links: { self: { href: `${appPath(clientId)}/secrets/${secret.id}` } },
  };
}

export function representMember(clientId: string, member: Member): Json {
  return {
    account: member.accountId,
    name: member.name === '' ? null : member.name,
    email: member.email,
    role: member.role,
    state: 'active',
    created_at: member.createdAt.toISOString(),
    expires_at: null,
    _links: memberLinks(clientId, member.accountId),
  };
}

/** An invitation in the list of members. It does not reveal whether an account with the address exists. */
export function representInvited(invitation: Invitation): Json {
  return {
    account: null,
    name: null,
    email: invitation.email,
    role: invitation.role,
    state: 'invited',
    created_at: invitation.createdAt.toISOString(),
    expires_at: invitation.expiresAt.toISOString(),
    _links: memberLinks(invitation.clientId, invitation.email),
  };
}

function memberLinks(clientId: string, account: string): Json {
  const app = appPath(clientId);
  return { self: { href: `${app}/members/${encodeURIComponent(account)}` }, app: { href: app } };
}

export function representReceived(invitation: ReceivedInvitation): Json {
  const { id, clientId, app } = invitation;
  const self = `/app-invitations/${id}`;
  return {
    id,
    app: { client_id: clientId, client_name: app.name, logo_uri: app.logoUri },
    role: invitation.role,
    invited_by: invitation.invitedBy,
    created_at: invitation.createdAt.toISOString(),
    expires_at: invitation.expiresAt.toISOString(),
    _links: { self: { href: self }, accept: { href: `${self}/accept`, method: 'POST' } },
  };
}
