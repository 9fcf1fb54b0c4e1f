/** The apps of the user, and those that they are invited to. */

import { useInfiniteQuery, useQuery, useQueryClient } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { AppWindow, Plus } from 'lucide-react';
import { appsQuery, invitationsQuery } from '../../api/apps.ts';
import type { AppInvitation } from '../../api/generated.ts';
import { request } from '../../api/request.ts';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { Page } from '../../ui/page.tsx';
import { Empty, Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { Ago } from '../../ui/time.tsx';
import { tell, tellFailure } from '../../ui/toasts.tsx';
import { AppBadge } from './app_badge.tsx';

const newLink = (
  <ButtonLink look="primary" to="/apps/new">
    <Plus size={16} aria-hidden /> New app
  </ButtonLink>
);

export function AppsPage() {
  return (
    <Page title="Apps" description="What acts for users, within what each of them allows." actions={newLink}>
      <Invitations />
      <Apps />
    </Page>
  );
}

function Invitations() {
  const { data } = useQuery(invitationsQuery);
  return (data?.items ?? []).map((invitation) => <Invitation key={invitation.id} invitation={invitation} />);
}

function Invitation({ invitation: { id, app, role, invited_by: by } }: { invitation: AppInvitation }) {
  const cache = useQueryClient();
  const answer = async (work: () => Promise<unknown>, done: string) => {
    try {
      await work();
      tell(done);
    } catch (error) {
      tellFailure(error);
    }
    await cache.invalidateQueries({ queryKey: ['app-invitations'] });
    await cache.invalidateQueries({ queryKey: ['apps'] });
  };
  const path = { id };
  return (
    <Notice title={`You are invited to ${app.client_name}`}>
      <p>
        {by === null ? 'The operator' : `${by.name} (${by.email})`} asks you to join as {role}.
      </p>
      <div className="row">
        <Button
          look="primary"
          isSmall
          onPress={() =>
            answer(() => request('POST /app-invitations/{id}/accept', { path, body: {} }), 'Joined.')
          }
        >
          Join
        </Button>
        <Button
          isSmall
          onPress={() => answer(() => request('DELETE /app-invitations/{id}', { path }), 'Declined.')}
        >
          Decline
        </Button>
      </div>
    </Notice>
  );
}

function Apps() {
  const { data, error, refetch, hasNextPage, fetchNextPage } = useInfiniteQuery(appsQuery);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const apps = data.pages.flatMap((page) => page.items);
  if (apps.length === 0) {
    return (
      <div className="card">
        <Empty icon={AppWindow} title="You have no app yet" action={newLink}>
          Create one to get a client id. Users then allow it to act for them, and it hears of what happens.
        </Empty>
      </div>
    );
  }
  return (
    <div className="stack">
      <div className="card">
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
                  <Link className="table-link" to="/apps/$id" params={{ id: app.client_id }}>
                    {app.client_name}
                  </Link>
                  <p className="soft small mono">{app.client_id}</p>
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
      </div>
      {hasNextPage && <Button onPress={() => void fetchNextPage()}>Show more</Button>}
    </div>
  );
}
