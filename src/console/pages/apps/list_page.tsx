/** The apps that the user works on, and those that they are invited to. */

import { useInfiniteQuery, useQuery, useQueryClient } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { AppWindow, Plus } from 'lucide-react';
import { appsQuery, invitationsQuery } from '../../api/apps.ts';
import type { App, AppInvitation } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { Page } from '../../ui/page.tsx';
import { Empty, Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { Ago, formatExact } from '../../ui/time.tsx';
import { useAction } from '../../ui/use_action.ts';
import { AppBadge } from './app_badge.tsx';

const newLink = (
  <ButtonLink look="primary" to="/apps/new">
    <Plus size={16} aria-hidden /> New app
  </ButtonLink>
);

export function AppsPage() {
  return (
    <Page title="Apps" description="Programs that act here for the users who allow them." actions={newLink}>
      <Invitations />
      <Apps />
    </Page>
  );
}

function Apps() {
  const { data, error, refetch, hasNextPage, fetchNextPage, isFetchingNextPage } =
    useInfiniteQuery(appsQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const apps = data.pages.flatMap((page) => page.items);
  if (apps.length === 0) return <NoApps />;
  return (
    <div className="stack">
      <div className="card table-scroll">
        <AppTable apps={apps} />
      </div>
      {hasNextPage && (
        <Button isPending={isFetchingNextPage} onPress={() => void fetchNextPage()}>
          Show more
        </Button>
      )}
    </div>
  );
}

function NoApps() {
  return (
    <div className="card">
      <Empty icon={AppWindow} title="You have no app yet" action={newLink}>
        An app gets a client id, and access to what its users allow. Make one, and try it on its page at once.
      </Empty>
    </div>
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
          <th scope="col">Made</th>
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
            <td data-label="Your role">{app.role}</td>
            <td className="soft" data-label="Made">
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
      <span className="avatar avatar-square" aria-hidden>
        {[...app.client_name][0]?.toUpperCase()}
      </span>
      <span>
        <Link className="table-link" to="/apps/$id" params={{ id: app.client_id }}>
          {app.client_name}
        </Link>
        <br />
        <span className="soft mono">{app.client_id}</span>
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
  const from = inviter === null ? 'You are' : `${inviter.name} (${inviter.email}) has`;
  return (
    <Notice title={`${from} invited ${inviter === null ? '' : 'you '}to ${app.client_name}`}>
      <p>
        As {role === 'owner' ? 'an owner' : 'a developer'} you would {whatRoleDoes(role)}. The invitation
        lasts until {formatExact(expiresAt)}.
      </p>
      <div className="row">
        <Button
          isSmall
          look="primary"
          isPending={isPending}
          onPress={() =>
            settle(
              () => request('POST /app-invitations/{id}/accept', { path: { id }, body: {} }),
              `You work on ${app.client_name} now.`,
            )
          }
        >
          Accept
        </Button>
        <Button
          isSmall
          isPending={isPending}
          onPress={() => settle(() => request('DELETE /app-invitations/{id}', { path: { id } }), 'Declined.')}
        >
          Decline
        </Button>
      </div>
    </Notice>
  );
}

function whatRoleDoes(role: string): string {
  return role === 'owner'
    ? 'change it, choose who else works on it, and be able to delete it'
    : 'change it, its secrets and its subscriptions';
}
