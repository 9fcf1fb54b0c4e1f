/** The members of an app. Owners manage them; developers see them and can leave. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { membersQuery } from '../../api/apps.ts';
import type { App, AppMember } from '../../api/generated.ts';
import { describeFailure } from '../../api/problem.ts';
import { userQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Badge } from '../../ui/badge.tsx';
import { Button } from '../../ui/button.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { SelectField, TextField } from '../../ui/fields.tsx';
import { Card } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { Ago, formatMinute } from '../../ui/time.tsx';
import { tell } from '../../ui/toasts.tsx';
import { useAction } from '../../ui/use_action.ts';
import { roles, titleOfRole } from './words.ts';

type Role = AppMember['role'];

export function Members({ app }: { app: App }) {
  const { data, error, refetch } = useQuery(membersQuery(app.client_id));
  const mayManage = app.role !== 'developer';
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  const owners = data.items.filter(({ role, state }) => role === 'owner' && state === 'active');
  return (
    <div className="stack-large">
      <Card
        title="Members"
        description="Developers can change the app, its secrets and its subscriptions. Owners can also manage members and delete the app."
        isFlush
      >
        <table className="table table-cards">
          <thead>
            <tr>
              <th scope="col">Member</th>
              <th scope="col">Role</th>
              <th scope="col">Added</th>
              <th scope="col" className="end">
                <span className="visually-hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {data.items.map((member) => (
              <MemberRow
                key={keyOf(member)}
                app={app}
                member={member}
                isLastOwner={owners.length === 1 && owners[0] === member}
              />
            ))}
          </tbody>
        </table>
      </Card>
      {mayManage && <Invite app={app} />}
    </div>
  );
}

interface MemberRowProps {
  app: App;
  member: AppMember;
  isLastOwner: boolean;
}

function MemberRow({ app, member, isLastOwner }: MemberRowProps) {
  const { data: user } = useQuery(userQuery);
  const isSelf = member.account !== null && member.account === user?.sub;
  const mayManage = app.role !== 'developer';
  const isInvited = member.state === 'invited';
  return (
    <tr>
      <td>
        <strong>{nameOf(member)}</strong> {isSelf && <Badge look="info">you</Badge>}{' '}
        {isInvited && <Badge look="warn">invited</Badge>}
        <p className="soft small">
          {member.name !== null && member.email}
          {isInvited && member.expires_at !== null && ` Expires on ${formatMinute(member.expires_at)}`}
        </p>
      </td>
      <td data-label="Role">
        {mayManage && !isLastOwner ? <RoleSelect app={app} member={member} /> : titleOfRole(member.role)}
      </td>
      <td className="soft" data-label="Added">
        <Ago time={member.created_at} />
      </td>
      <td className="end">
        {isLastOwner ? (
          <span className="soft small">An app needs an owner.</span>
        ) : (
          (mayManage || isSelf) && <RemoveButton app={app} member={member} isSelf={isSelf} />
        )}
      </td>
    </tr>
  );
}

function nameOf(member: AppMember): string {
  return member.name ?? member.email ?? 'Unnamed member';
}

/** The id: members have an account, invitations an email address. */
function keyOf(member: AppMember): string {
  return member.account ?? member.email ?? '';
}

function RoleSelect({ app, member }: { app: App; member: AppMember }) {
  const cache = useQueryClient();
  const { run } = useAction();
  const change = (role: string) => {
    if (role === member.role) return;
    void run(
      async () => {
        await request('PUT /apps/{id}/members/{account}', {
          path: { id: app.client_id, account: keyOf(member) },
          body: { role: role as Role },
        });
        await cache.invalidateQueries({ queryKey: ['app', app.client_id] });
      },
      `${nameOf(member)} is now ${role === 'owner' ? 'an owner' : 'a developer'}.`,
    );
  };
  return (
    <div className="member-role">
      <SelectField
        label={`Role of ${nameOf(member)}`}
        isLabelHidden
        value={member.role}
        onChange={change}
        choices={roles}
      />
    </div>
  );
}

function RemoveButton({ app, member, isSelf }: { app: App; member: AppMember; isSelf: boolean }) {
  const [isAsking, setAsking] = useState(false);
  const cache = useQueryClient();
  const navigate = useNavigate();
  const isInvited = member.state === 'invited';
  const action = isSelf ? 'Leave' : isInvited ? 'Revoke' : 'Remove';
  const remove = async () => {
    const path = { id: app.client_id, account: keyOf(member) };
    await request('DELETE /apps/{id}/members/{account}', { path });
    await cache.invalidateQueries({ queryKey: ['apps'] });
    if (!isSelf) {
      await cache.invalidateQueries({ queryKey: ['app', app.client_id] });
      tell(isInvited ? 'Invitation revoked.' : `${nameOf(member)} was removed.`);
      return;
    }
    await navigate({ to: '/apps' });
    cache.removeQueries({ queryKey: ['app', app.client_id] });
    tell(`You left ${app.client_name}.`);
  };
  return (
    <>
      <Button
        isSmall
        look="danger"
        aria-label={isSelf ? 'Leave the app' : `${action} ${nameOf(member)}`}
        onPress={() => setAsking(true)}
      >
        {action}
      </Button>
      <ConfirmDialog
        title={isSelf ? `Leave ${app.client_name}?` : `${action} ${nameOf(member)}?`}
        action={action}
        isOpen={isAsking}
        onClose={() => setAsking(false)}
        onConfirm={remove}
      >
        <p>
          {isSelf
            ? 'You lose access to the app. An owner can invite you again.'
            : isInvited
              ? 'The invitation stops working immediately. You can invite this person again.'
              : 'This person loses access to the app. Secrets that they know keep working: replace them.'}
        </p>
      </ConfirmDialog>
    </>
  );
}

function Invite({ app }: { app: App }) {
  const [email, setEmail] = useState('');
  const [role, setRole] = useState('developer');
  const [failure, setFailure] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const cache = useQueryClient();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const address = email.trim();
    if (!/^[^\s@]+@[^\s@]+$/.test(address)) return setFailure('Enter an email address.');
    setPending(true);
    setFailure(null);
    try {
      await request('PUT /apps/{id}/members/{account}', {
        path: { id: app.client_id, account: address },
        body: { role: role as Role },
      });
      await cache.invalidateQueries({ queryKey: ['app', app.client_id] });
      setEmail('');
      tell(`${address} is invited. The invitation appears on their Apps page.`);
    } catch (error) {
      setFailure(describeFailure(error));
    } finally {
      setPending(false);
    }
  };
  return (
    <Card
      title="Invite a member"
      description="The invitation appears under Apps when they sign in with this address. It expires after 14 days."
    >
      <form className="invite" onSubmit={submit} noValidate>
        <TextField
          label="Email address"
          type="email"
          value={email}
          onChange={(next) => {
            setEmail(next);
            setFailure(null);
          }}
          autoComplete="off"
          error={failure}
        />
        <SelectField label="Role" value={role} onChange={setRole} choices={roles} />
        <Button look="primary" type="submit" isPending={isPending}>
          Invite
        </Button>
      </form>
    </Card>
  );
}
