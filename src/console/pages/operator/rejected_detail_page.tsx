/** One rejected event: why it was rejected, and a form that corrects and retries it. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useNavigate, useParams } from '@tanstack/react-router';
import { rejectedEventQuery } from '../../api/admin.ts';
import type { RejectedEventWithBody } from '../../api/generated.ts';
import { DraftForm, type FieldErrors } from '../../ui/draft_form.tsx';
import { TextField } from '../../ui/fields.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { Ago } from '../../ui/time.tsx';
import { tell } from '../../ui/toasts.tsx';
import { Action } from './action.tsx';
import { discardRejected, retryRejected } from './rejected_actions.ts';
import { bodyError, type CorrectionDraft, correctionOf, draftOf } from './rejected_correction.ts';

const crumbs = [{ title: 'Rejected events', to: '/operator/rejected' }];

export function RejectedEventPage() {
  const { id } = useParams({ from: '/operator/rejected/$id' });
  const { data: event, error, refetch } = useQuery(rejectedEventQuery(id));
  if (event === undefined) {
    return (
      <Page title="Rejected event" crumbs={crumbs}>
        {error === null ? <Skeletons /> : <Failure error={error} onRetry={() => void refetch()} />}
      </Page>
    );
  }
  return (
    <Page title={event.kind} crumbs={crumbs} actions={<Discard event={event} />}>
      <div className="stack">
        <Why event={event} />
        <Card
          title="Correct and retry"
          description="The event is validated again with your changes. It keeps its ID."
        >
          <Correction key={event.id} event={event} />
        </Card>
      </div>
    </Page>
  );
}

function useLeave(): (said?: string) => Promise<void> {
  const navigate = useNavigate();
  const cache = useQueryClient();
  return async (said) => {
    await navigate({ to: '/operator/rejected' });
    await cache.invalidateQueries({ queryKey: ['admin', 'GET /admin/rejected-events'] });
    if (said !== undefined) tell(said);
  };
}

function Discard({ event }: { event: RejectedEventWithBody }) {
  const leave = useLeave();
  return (
    <Action
      title="Discard"
      of={event.kind}
      isDanger
      question={`Discard ${event.kind}?`}
      done={`${event.kind} discarded.`}
      onConfirm={async () => {
        await discardRejected(event.id);
        await leave();
      }}
    >
      The event is deleted and never delivered. This cannot be undone.
    </Action>
  );
}

function Why({ event }: { event: RejectedEventWithBody }) {
  return (
    <>
      <Notice look="warn" title={event.reason}>
        {/* The reason contains the first error. */}
        {event.errors.length > 1 && (
          <ul>
            {event.errors.map(({ pointer, message }) => (
              <li key={`${pointer} ${message}`}>
                <code>{pointer === '' ? '/' : pointer}</code> {message}
              </li>
            ))}
          </ul>
        )}
      </Notice>
      <Card>
        <dl className="facts">
          <div>
            <dt>Event ID</dt>
            <dd className="mono">{event.event}</dd>
          </div>
          <div>
            <dt>Published</dt>
            <dd>
              <Ago time={event.published_at} />
            </dd>
          </div>
          <div>
            <dt>Rejected</dt>
            <dd>
              <Ago time={event.rejected_at} />
            </dd>
          </div>
        </dl>
      </Card>
    </>
  );
}

function errorsOf(first: CorrectionDraft, draft: CorrectionDraft): FieldErrors<CorrectionDraft> {
  const errors: FieldErrors<CorrectionDraft> = {};
  if (draft.kind.trim() === '') errors.kind = 'Enter a kind.';
  if (draft.account.trim() === '') errors.account = 'Enter an account.';
  const error = draft.body === first.body ? null : bodyError(draft.body);
  if (error !== null) errors.body = error;
  return errors;
}

function Correction({ event }: { event: RejectedEventWithBody }) {
  const leave = useLeave();
  const first = draftOf(event);
  return (
    <DraftForm
      first={first}
      action="Retry"
      errorsOf={(draft) => errorsOf(first, draft)}
      members={[
        ['kind', 'kind'],
        ['account', 'account'],
        ['body', 'body'],
      ]}
      sayError={(message) => `This ${message}.`}
      onSubmit={async (draft) => {
        await retryRejected(event.id, correctionOf(first, draft));
        await leave(`${draft.kind} is published.`);
      }}
      onCancel={() => void leave()}
    >
      {({ draft, errors, onChange }) => (
        <>
          <TextField
            label="Kind"
            value={draft.kind}
            onChange={(kind) => onChange({ kind })}
            error={errors.kind}
            isMono
          />
          <TextField
            label="Account"
            description="An account ID, or the user ID in your application."
            value={draft.account}
            onChange={(account) => onChange({ account })}
            error={errors.account}
            isMono
          />
          <TextField
            label="Body (JSON)"
            value={draft.body}
            onChange={(body) => onChange({ body })}
            error={errors.body}
            isMono
            isLong
            spellCheck="false"
          />
        </>
      )}
    </DraftForm>
  );
}
