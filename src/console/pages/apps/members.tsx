/** Who works on an app. Owners choose; developers see who else there is, and may leave. */

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
import { Ago, formatExact } from '../../ui/time.tsx';
import { tell } from '../../ui/toasts.tsx';
import { useAction } from '../../ui/use_action.ts';

const roles = [
  { id: 'owner', title: 'Owner' },
  { id: 'developer', title: 'Developer' },
];

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
        description="Developers change the app, its secrets and its subscriptions. Owners also choose the members and delete the app."
        isFlush
      >
        <table className="table table-cards">
          <thead>
            <tr>
              <th scope="col">Person</th>
              <th scope="col">Role</th>
              <th scope="col">Since</th>
              <th scope="col" className="end">
                <span className="visually-hidden">What to do</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {data.items.map((member) => (
              <MemberRow
                key={member.account ?? member.email}
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
        <strong>{member.name ?? member.email}</strong> {isSelf && <Badge look="info">you</Badge>}{' '}
        {isInvited && <Badge look="warn">invited</Badge>}
        <p className="soft small">
          {member.name !== null && member.email}
          {isInvited && member.expires_at !== null && ` until ${formatExact(member.expires_at)}`}
        </p>
      </td>
      <td data-label="Role">
        {mayManage && !isLastOwner ? <RoleSelect app={app} member={member} /> : titleOfRole(member.role)}
      </td>
      <td className="soft" data-label="Since">
        <Ago time={member.created_at} />
      </td>
      <td className="end">
        {isLastOwner ? (
          <span className="soft small">The last owner stays.</span>
        ) : (
          (mayManage || isSelf) && <RemoveButton app={app} member={member} isSelf={isSelf} />
        )}
      </td>
    </tr>
  );
}

function titleOfRole(role: Role): string {
  return roles.find(({ id }) => id === role)?.title ?? role;
}

function nameOf(member: AppMember): string {
  return member.name ?? member.email;
}

function RoleSelect({ app, member }: { app: App; member: AppMember }) {
  const cache = useQueryClient();
  const { run } = useAction();
  const change = (role: string) => {
    if (role === member.role) return;
    void run(
      async () => {
        await request('PUT /apps/{id}/members/{account}', {
          path: { id: app.client_id, account: member.account ?? member.email },
          body: { role: role as Role },
        });
        await cache.invalidateQueries({ queryKey: ['app', app.client_id] });
      },
      `${nameOf(member)} is ${role === 'owner' ? 'an owner' : 'a developer'} now.`,
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
  const action = isSelf ? 'Leave' : isInvited ? 'Take back' : 'Remove';
  const remove = async () => {
    const path = { id: app.client_id, account: member.account ?? member.email };
    await request('DELETE /apps/{id}/members/{account}', { path });
    await cache.invalidateQueries({ queryKey: ['apps'] });
    if (!isSelf) {
      await cache.invalidateQueries({ queryKey: ['app', app.client_id] });
      tell(isInvited ? 'The invitation is taken back.' : `${nameOf(member)} is no member any more.`);
      return;
    }
    await navigate({ to: '/apps' });
    cache.removeQueries({ queryKey: ['app', app.client_id] });
    tell(`You have left ${app.client_name}.`);
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
            ? 'You do not see the app any more. An owner can invite you again.'
            : isInvited
              ? 'The invitation ends at once. You can invite the person again.'
              : 'The person does not see the app any more. Secrets that they know go on working: replace them.'}
        </p>
      </ConfirmDialog>
    </>
  );
}

function Invite({ app }: { app: App }) {
  const [email, setEmail] = useState('');
  const [role, setRole] = useState('developer');
  const [fault, setFault] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const cache = useQueryClient();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const address = email.trim();
    if (!/^[^\s@]+@[^\s@]+$/.test(address)) return setFault('This is not an e-mail address.');
    setPending(true);
    setFault(null);
    try {
      await request('PUT /apps/{id}/members/{account}', {
        path: { id: app.client_id, account: address },
        body: { role: role as Role },
      });
      await cache.invalidateQueries({ queryKey: ['app', app.client_id] });
      setEmail('');
      tell(`${address} is invited. The invitation is on their page of apps.`);
    } catch (error) {
      setFault(describeFailure(error));
    } finally {
      setPending(false);
    }
  };
  return (
    <Card
      title="Invite somebody"
      description="Whoever signs in with this address finds the invitation under Apps, for 14 days."
    >
      <form className="invite" onSubmit={submit} noValidate>
        <TextField
          label="E-mail address"
          type="email"
          value={email}
          onChange={(next) => {
            setEmail(next);
            setFault(null);
          }}
          autoComplete="off"
          error={fault}
        />
        <SelectField label="Role" value={role} onChange={setRole} choices={roles} />
        <Button look="primary" type="submit" isPending={isPending}>
          Invite
        </Button>
      </form>
    </Card>
  );
}
