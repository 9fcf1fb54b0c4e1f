/** The user's apps and invitations. */

import { useInfiniteQuery, useQuery, useQueryClient } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { AppWindow, Plus } from 'lucide-react';
import { appsQuery, invitationsQuery } from '../../api/apps.ts';
import type { App, AppInvitation } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { Page } from '../../ui/page.tsx';
import { PagedList } from '../../ui/paged_list.tsx';
import { Empty, Notice } from '../../ui/states.tsx';
import { Ago, formatMinute } from '../../ui/time.tsx';
import { useAction } from '../../ui/use_action.ts';
import { AppBadge } from './app_badge.tsx';
import { AppLogo } from './app_logo.tsx';
import { titleOfRole } from './words.ts';

const newLink = (
  <ButtonLink look="primary" to="/apps/new">
    <Plus size={16} aria-hidden /> New app
  </ButtonLink>
);

export function AppsPage() {
  return (
    <Page title="Apps" description="The apps that you develop." actions={newLink}>
      <Invitations />
      <Apps />
    </Page>
  );
}

function Apps() {
  return (
    <PagedList query={useInfiniteQuery(appsQuery)} nothing={() => <NoApps />}>
      {(apps) => <AppTable apps={apps} />}
    </PagedList>
  );
}

function NoApps() {
  return (
    <Empty icon={AppWindow} title="No apps yet" action={newLink}>
      Create an app to get a client ID, then test its sign-in from its page.
    </Empty>
  );
}

function AppTable({ apps }: { apps: readonly App[] }) {
  return (
    <table className="table table-cards">
      <thead>
        <tr>
          <th scope="col">App</th>
          <th scope="col">State</th>
          <th scope="col">Your role</th>
          <th scope="col">Created</th>
        </tr>
      </thead>
      <tbody>
        {apps.map((app) => (
          <tr key={app.client_id}>
            <td>
              <AppName app={app} />
            </td>
            <td>
              <AppBadge state={app.state} />
            </td>
            <td data-label="Your role">{titleOfRole(app.role)}</td>
            <td className="soft" data-label="Created">
              <Ago time={app.created_at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function AppName({ app }: { app: App }) {
  return (
    <span className="named">
      <AppLogo app={app} />
      <span>
        <Link className="table-link" to="/apps/$id" params={{ id: app.client_id }}>
          {app.client_name}
        </Link>
        <br />
        <span className="soft mono row-id">{app.client_id}</span>
      </span>
    </span>
  );
}

function Invitations() {
  const { data } = useQuery(invitationsQuery);
  return data?.items.map((invitation) => <Invitation key={invitation.id} invitation={invitation} />);
}

function Invitation({ invitation }: { invitation: AppInvitation }) {
  const { id, app, role, invited_by: inviter, expires_at: expiresAt } = invitation;
  const cache = useQueryClient();
  const { isPending, run } = useAction();
  const settle = (work: () => Promise<unknown>, done: string) =>
    run(async () => {
      await work();
      await Promise.all([
        cache.invalidateQueries({ queryKey: ['app-invitations'] }),
        cache.invalidateQueries({ queryKey: ['apps'] }),
      ]);
    }, done);
  const from =
    inviter === null
      ? 'You are invited'
      : `${[inviter.name, inviter.email && `(${inviter.email})`].filter(Boolean).join(' ') || 'A member'} invited you`;
  return (
    <Notice title={`${from} to ${app.client_name}`}>
      <p>
        {whatRoleDoes(role)} The invitation expires on {formatMinute(expiresAt)}.
      </p>
      <div className="row">
        <Button
          isSmall
          look="primary"
          isPending={isPending}
          onPress={() =>
            settle(
              () => request('POST /app-invitations/{id}/accept', { path: { id }, body: {} }),
              `You are now a member of ${app.client_name}.`,
            )
          }
        >
          Accept
        </Button>
        <Button
          isSmall
          isPending={isPending}
          onPress={() =>
            settle(() => request('DELETE /app-invitations/{id}', { path: { id } }), 'Invitation declined.')
          }
        >
          Decline
        </Button>
      </div>
    </Notice>
  );
}

function whatRoleDoes(role: string): string {
  return role === 'owner'
    ? 'As an owner, you can change the app, manage its members and delete it.'
    : 'As a developer, you can change the app, its secrets and its subscriptions.';
}
