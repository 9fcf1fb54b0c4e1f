/** Who works on an app: owners and developers, and who is invited. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { membersQuery } from '../../api/apps.ts';
import type { App, AppMember } from '../../api/generated.ts';
import { describeFailure } from '../../api/problem.ts';
import { request } from '../../api/request.ts';
import { Badge } from '../../ui/badge.tsx';
import { Button } from '../../ui/button.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { SelectField, TextField } from '../../ui/fields.tsx';
import { Card } from '../../ui/page.tsx';
import { Failure, Skeletons } from '../../ui/states.tsx';
import { tell } from '../../ui/toasts.tsx';

const roles = [
  { id: 'developer', title: 'Developer: changes the app' },
  { id: 'owner', title: 'Owner: also members, and deletes it' },
];

export function Members({ app }: { app: App }) {
  const id = app.client_id;
  const mayManage = app.role !== 'developer';
  return (
    <div className="stack-large">
      {mayManage && <Invite id={id} />}
      <MemberList id={id} mayManage={mayManage} />
    </div>
  );
}

function Invite({ id }: { id: string }) {
  const cache = useQueryClient();
  const [email, setEmail] = useState('');
  const [role, setRole] = useState('developer');
  const [failure, setFailure] = useState<string | null>(null);
  const invite = async (event: FormEvent) => {
    event.preventDefault();
    setFailure(null);
    try {
      const body = { role: role as 'owner' | 'developer' };
      await request('PUT /apps/{id}/members/{account}', { path: { id, account: email.trim() }, body });
      tell(`${email.trim()} is invited for 14 days, and finds it under Apps.`);
      setEmail('');
    } catch (error) {
      setFailure(describeFailure(error));
    }
    await cache.invalidateQueries({ queryKey: ['app', id, 'members'] });
  };
  return (
    <Card title="Invite">
      <form className="invite" onSubmit={invite} noValidate>
        <TextField label="E-mail address" type="email" value={email} onChange={setEmail} error={failure} />
        <SelectField label="Role" value={role} onChange={setRole} choices={roles} />
        <Button look="primary" type="submit" isDisabled={!email.includes('@')}>
          Invite
        </Button>
      </form>
    </Card>
  );
}

function MemberList({ id, mayManage }: { id: string; mayManage: boolean }) {
  const cache = useQueryClient();
  const { data, error, refetch } = useQuery(membersQuery(id));
  const [leaving, setLeaving] = useState<AppMember | null>(null);
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons />;
  return (
    <Card title="Members" isFlush>
      <ul className="list-rows">
        {data.items.map((member) => (
          <li key={member.account ?? member.email} className="row-between">
            <span>
              <strong>{member.name ?? member.email}</strong>
              <br />
              <span className="soft small">{member.email}</span>
            </span>
            <span className="row">
              <Badge look={member.role === 'owner' ? 'info' : 'still'}>{member.role}</Badge>
              {member.state === 'invited' && <Badge look="warn">invited</Badge>}
              {mayManage && (
                <Button
                  look="danger"
                  isSmall
                  aria-label={`Remove ${member.email}`}
                  onPress={() => setLeaving(member)}
                >
                  Remove
                </Button>
              )}
            </span>
          </li>
        ))}
      </ul>
      <ConfirmDialog
        title={`Remove ${leaving?.email ?? ''}?`}
        action="Remove"
        isOpen={leaving !== null}
        onClose={() => setLeaving(null)}
        onConfirm={async () => {
          const account = leaving?.account ?? leaving?.email ?? '';
          await request('DELETE /apps/{id}/members/{account}', { path: { id, account } });
          await cache.invalidateQueries({ queryKey: ['app', id, 'members'] });
          tell('Removed.');
        }}
      >
        <p>They can no longer see or change the app, from now on.</p>
      </ConfirmDialog>
    </Card>
  );
}
