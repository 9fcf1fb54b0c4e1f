/** The secret of a subscription: hidden until the user shows it, and rotated with an overlap. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import type { Subscription } from '../../api/generated.ts';
import { secretQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { Secret } from '../../ui/copy.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { SelectField } from '../../ui/fields.tsx';
import { Card } from '../../ui/page.tsx';
import { Failure } from '../../ui/states.tsx';
import { formatMinute } from '../../ui/time.tsx';
import { tell } from '../../ui/toasts.tsx';

const overlaps = [
  { id: '0', title: 'Now' },
  { id: '3600', title: 'After 1 hour' },
  { id: '86400', title: 'After 24 hours' },
  { id: '604800', title: 'After 7 days' },
];

export function SecretCard({ subscription }: { subscription: Subscription }) {
  const [isRotating, setRotating] = useState(false);
  return (
    <Card
      title="Signing secret"
      description="Signs deliveries. Anyone who has it can forge them."
      actions={
        <Button isSmall onPress={() => setRotating(true)}>
          Rotate
        </Button>
      }
    >
      <Secrets id={subscription.id} />
      <RotateDialog id={subscription.id} isOpen={isRotating} onClose={() => setRotating(false)} />
    </Card>
  );
}

function Secrets({ id }: { id: string }) {
  const { data, error, refetch } = useQuery(secretQuery(id));
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <span className="skeleton" />;
  return (
    <div className="stack-small">
      <Secret value={data.secret} label="the secret" />
      {data.previous_secret !== null && data.previous_secret_until !== null && (
        <>
          <p className="soft small">
            The previous secret also signs until {formatMinute(data.previous_secret_until)}.
          </p>
          <Secret value={data.previous_secret} label="the previous secret" />
        </>
      )}
    </div>
  );
}

function RotateDialog({ id, isOpen, onClose }: { id: string; isOpen: boolean; onClose: () => void }) {
  const [overlap, setOverlap] = useState('86400');
  const cache = useQueryClient();
  return (
    <ConfirmDialog
      title="Rotate the secret?"
      action="Rotate"
      look="primary"
      isOpen={isOpen}
      onClose={onClose}
      onConfirm={async () => {
        const secrets = await request('POST /subscriptions/{id}/rotate-secret', {
          path: { id },
          body: { overlap: Number(overlap) },
        });
        cache.setQueryData(secretQuery(id).queryKey, secrets);
        tell('Secret rotated. Deploy the new secret to your receiver.');
      }}
    >
      <p>
        Creates a new secret. Both secrets sign until the old one expires, so that you can update your
        receiver without downtime.
      </p>
      <SelectField label="The old secret expires" value={overlap} onChange={setOverlap} choices={overlaps} />
    </ConfirmDialog>
  );
}
