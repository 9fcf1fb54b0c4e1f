/** The filter of a subscription in words, with a button that removes it. */

import { useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import type { Subscription } from '../../../api/generated.ts';
import { subscriptionQuery } from '../../../api/queries.ts';
import { request } from '../../../api/request.ts';
import { Button } from '../../../ui/button.tsx';
import { ConfirmDialog } from '../../../ui/dialog.tsx';
import { tell } from '../../../ui/toasts.tsx';
import { filterDraftOf } from './draft.ts';
import { FilterWords } from './filter_words.tsx';

interface FilterFactProps {
  subscription: Subscription;
  mayClear: boolean;
}

export function FilterFact({ subscription: { id, filter }, mayClear }: FilterFactProps) {
  const [isOpen, setOpen] = useState(false);
  const cache = useQueryClient();
  if (filter === null) return 'None';
  return (
    <div className="stack-small">
      <FilterWords draft={filterDraftOf(filter)} />
      {mayClear && (
        <div>
          <Button isSmall onPress={() => setOpen(true)}>
            Remove the filter
          </Button>
        </div>
      )}
      <ConfirmDialog
        title="Remove the filter?"
        action="Remove"
        isOpen={isOpen}
        onClose={() => setOpen(false)}
        onConfirm={async () => {
          const changed = await request('PATCH /subscriptions/{id}', {
            path: { id },
            body: { filter: null },
          });
          cache.setQueryData(subscriptionQuery(id).queryKey, changed);
          await cache.invalidateQueries({ queryKey: ['subscriptions'] });
          tell('Filter removed.');
        }}
      >
        <p>From now on, every event of the selected kinds is sent.</p>
      </ConfirmDialog>
    </div>
  );
}
