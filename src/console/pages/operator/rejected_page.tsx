/** Events that were published by SQL and failed validation, to retry or discard. */

import { useInfiniteQuery, useQueryClient } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { type ReactNode, useState } from 'react';
import { adminListQuery } from '../../api/admin.ts';
import type { RejectedEvent } from '../../api/generated.ts';
import { Button } from '../../ui/button.tsx';
import { type Column, DataTable } from '../../ui/data_table.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { Checkbox } from '../../ui/fields.tsx';
import { Page } from '../../ui/page.tsx';
import { Ago } from '../../ui/time.tsx';
import { tell } from '../../ui/toasts.tsx';
import { Action } from './action.tsx';
import { discardAll, discardRejected, retryRejected } from './rejected_actions.ts';

export function RejectedEventsPage() {
  const query = useInfiniteQuery(adminListQuery('GET /admin/rejected-events', {}));
  const shown = query.data?.pages.flatMap(({ items }) => items) ?? [];
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  // Chosen events that are no longer listed do not count.
  const selected = shown.filter(({ id }) => chosen.has(id)).map(({ id }) => id);
  const choose = (ids: readonly string[], isChosen: boolean) => {
    setChosen((before) =>
      isChosen ? new Set([...before, ...ids]) : new Set([...before].filter((id) => !ids.includes(id))),
    );
  };
  return (
    <Page
      title="Rejected events"
      description="Events that your application published by SQL and that failed validation. They are not delivered until a retry succeeds."
    >
      {shown.length > 0 && (
        <div className="row">
          <Checkbox
            isSelected={selected.length === shown.length}
            isIndeterminate={selected.length > 0 && selected.length < shown.length}
            onChange={(isChosen) =>
              choose(
                shown.map(({ id }) => id),
                isChosen,
              )
            }
          >
            Select all {shown.length} shown
          </Checkbox>
          <BulkDiscard ids={selected} onDiscarded={(id) => choose([id], false)} />
        </div>
      )}
      <DataTable
        query={query}
        columns={columnsFor((event) => (
          <Checkbox
            aria-label={`Select ${nameOf(event)}`}
            isSelected={chosen.has(event.id)}
            onChange={(isChosen) => choose([event.id], isChosen)}
          />
        ))}
        keyOf={({ id }) => id}
        nothing="No rejected events"
        nothingText="Every event that was published by SQL is valid."
      />
    </Page>
  );
}

function nameOf({ kind, event }: RejectedEvent): string {
  return `${kind} ${event}`;
}

function columnsFor(select: (event: RejectedEvent) => ReactNode): readonly Column<RejectedEvent>[] {
  return [{ title: 'Select', isMain: true, show: select }, ...columns];
}

const columns: readonly Column<RejectedEvent>[] = [
  {
    title: 'Event',
    isMain: true,
    show: ({ id, kind, event, reason }) => (
      <>
        <Link className="table-link mono" to="/operator/rejected/$id" params={{ id }}>
          {kind}
        </Link>
        <p>{reason}</p>
        <p className="soft small mono row-id">{event}</p>
      </>
    ),
  },
  { title: 'Account', show: ({ account }) => <span className="mono small row-id">{account}</span> },
  { title: 'Rejected', show: ({ rejected_at: at }) => <Ago time={at} /> },
  {
    title: '',
    show: (event) => (
      <span className="row row-end">
        <Action
          title="Retry"
          of={nameOf(event)}
          question={`Retry ${event.kind}?`}
          done={`${event.kind} is published.`}
          onConfirm={() => retryRejected(event.id)}
        >
          The event is validated again without changes, for example after you changed the schema of the kind.
          To correct it first, open it.
        </Action>
        <Action
          title="Discard"
          of={nameOf(event)}
          isDanger
          question={`Discard ${event.kind}?`}
          done={`${event.kind} discarded.`}
          onConfirm={() => discardRejected(event.id)}
        >
          The event is deleted and never delivered. This cannot be undone.
        </Action>
      </span>
    ),
  },
];

function BulkDiscard({ ids, onDiscarded }: { ids: readonly string[]; onDiscarded: (id: string) => void }) {
  const [isOpen, setOpen] = useState(false);
  const cache = useQueryClient();
  const count = ids.length === 1 ? '1 event' : `${ids.length} events`;
  return (
    <>
      <Button look="danger" isSmall isDisabled={ids.length === 0} onPress={() => setOpen(true)}>
        {ids.length === 0 ? 'Discard selected' : `Discard ${count}`}
      </Button>
      <ConfirmDialog
        title={`Discard ${count}?`}
        action="Discard"
        isOpen={isOpen}
        onClose={() => setOpen(false)}
        onConfirm={async () => {
          try {
            await discardAll(ids, onDiscarded);
            tell(`Discarded ${count}.`);
          } finally {
            await cache.invalidateQueries({ queryKey: ['admin'] });
          }
        }}
      >
        <p>The selected events are deleted and never delivered. This cannot be undone.</p>
      </ConfirmDialog>
    </>
  );
}
