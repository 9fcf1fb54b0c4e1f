/** Recovers the failed, held or missing deliveries of a time range. Shows the progress and can stop it. */

import { useQuery } from '@tanstack/react-query';
import { History } from 'lucide-react';
import { useState } from 'react';
import { ProgressBar } from 'react-aria-components';
import { describeFailure } from '../../api/problem.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { Dialog } from '../../ui/dialog.tsx';
import { Checkbox, TextField } from '../../ui/fields.tsx';
import { Notice } from '../../ui/states.tsx';
import { tell, tellFailure } from '../../ui/toasts.tsx';

const states = [
  { id: 'failed', title: 'Failed', description: 'all attempts failed' },
  { id: 'held', title: 'Held', description: 'while the subscription was paused' },
  { id: 'missing', title: 'Missing', description: 'events from before the subscription existed' },
] as const;

type State = (typeof states)[number]['id'];

const dayMs = 86_400_000;
const pollMs = 1_000;

/** The value of a date field: local time without seconds. */
function toLocal(time: Date): string {
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export function Recover({ id }: { id: string }) {
  const [isOpen, setOpen] = useState(false);
  const [job, setJob] = useState<string | null>(null);
  return (
    <>
      <Button onPress={() => setOpen(true)}>
        <History size={16} aria-hidden /> Recover
      </Button>
      <Dialog title="Recover deliveries" isOpen={isOpen} onClose={() => setOpen(false)}>
        {job === null ? (
          <RecoverForm id={id} onStart={setJob} onCancel={() => setOpen(false)} />
        ) : (
          <Progress
            id={id}
            job={job}
            onClose={() => {
              setJob(null);
              setOpen(false);
            }}
          />
        )}
      </Dialog>
    </>
  );
}

function RecoverForm({
  id,
  onStart,
  onCancel,
}: {
  id: string;
  onStart: (job: string) => void;
  onCancel: () => void;
}) {
  const [since, setSince] = useState(() => toLocal(new Date(Date.now() - dayMs)));
  const [until, setUntil] = useState('');
  const [chosen, setChosen] = useState<readonly State[]>(['failed', 'held']);
  const [failure, setFailure] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const start = async () => {
    setPending(true);
    setFailure(null);
    try {
      const body = {
        since: new Date(since).toISOString(),
        ...(until === '' ? {} : { until: new Date(until).toISOString() }),
        status: [...chosen],
      };
      onStart((await request('POST /subscriptions/{id}/recover', { path: { id }, body })).id);
    } catch (error) {
      setFailure(describeFailure(error));
    } finally {
      setPending(false);
    }
  };
  const isReady = since !== '' && chosen.length > 0;
  return (
    <>
      <p>
        Sends the deliveries of a time range again. They keep their IDs, so that a receiver can detect
        duplicates.
      </p>
      <TextField label="From" type="datetime-local" value={since} onChange={setSince} />
      <TextField
        label="To"
        type="datetime-local"
        value={until}
        onChange={setUntil}
        description="Leave empty for now."
      />
      <fieldset className="field kind-picker stack-small">
        <legend className="field-label">Include</legend>
        {states.map((state) => (
          <Checkbox
            key={state.id}
            isSelected={chosen.includes(state.id)}
            onChange={(isOn) =>
              setChosen(isOn ? [...chosen, state.id] : chosen.filter((each) => each !== state.id))
            }
          >
            {state.title} <span className="soft small">{state.description}</span>
          </Checkbox>
        ))}
      </fieldset>
      {failure !== null && (
        <p role="alert" className="field-error">
          {failure}
        </p>
      )}
      <div className="form-actions">
        <Button onPress={onCancel}>Cancel</Button>
        <Button look="primary" isDisabled={!isReady} isPending={isPending} onPress={start}>
          Recover
        </Button>
      </div>
    </>
  );
}

function Progress({ id, job, onClose }: { id: string; job: string; onClose: () => void }) {
  const { data } = useQuery({
    queryKey: ['recovery', job],
    queryFn: ({ signal }) =>
      request('GET /subscriptions/{id}/recoveries/{job}', { path: { id, job }, signal }),
    refetchInterval: ({ state }) =>
      state.data?.state === 'running' || state.data === undefined ? pollMs : false,
  });
  const isRunning = data === undefined || data.state === 'running';
  const cancel = async () => {
    try {
      await request('DELETE /subscriptions/{id}/recoveries/{job}', { path: { id, job } });
      tell('Recovery stopped. Deliveries that are already due are still sent.');
      onClose();
    } catch (error) {
      tellFailure(error);
    }
  };
  return (
    <>
      {isRunning ? (
        <ProgressBar aria-label="Recovering" isIndeterminate className="progress">
          <span className="progress-bar" />
        </ProgressBar>
      ) : (
        <Notice look="good" title={data.state === 'done' ? 'Done' : 'Cancelled'} role="status">
          <p>
            {data.resent} resent, {data.added} added.
          </p>
        </Notice>
      )}
      {isRunning && (
        <p role="status">
          {data?.resent ?? 0} resent, {data?.added ?? 0} added so far.
        </p>
      )}
      <div className="form-actions">
        {isRunning && (
          <Button look="danger" onPress={cancel}>
            Stop
          </Button>
        )}
        <Button look="primary" onPress={onClose}>
          Close
        </Button>
      </div>
    </>
  );
}
