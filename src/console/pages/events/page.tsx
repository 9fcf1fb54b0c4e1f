/** The catalogue of event kinds, with schemas and examples to send to an own subscription. */

import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { Send } from 'lucide-react';
import { useState } from 'react';
import type { EventKind, TestStart } from '../../api/generated.ts';
import { kindsQuery, subscriptionsQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { SelectField } from '../../ui/fields.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { tellFailure } from '../../ui/toasts.tsx';
import { nameOf } from '../subscriptions/list_page.tsx';
import { KindDetails } from './kind_details.tsx';

export function EventsPage() {
  return (
    <Page title="Events" description="Every event that a subscription can receive.">
      <Catalogue />
    </Page>
  );
}

function Catalogue() {
  const { data, error, refetch } = useQuery(kindsQuery);
  const { kind } = useSearch({ from: '/events' });
  if (error !== null) return <Failure error={error} onRetry={refetch} />;
  if (data === undefined) return <Skeletons count={6} />;
  const chosen = data.items.find(({ name }) => name === kind) ?? data.items[0];
  return (
    <div className="catalogue">
      <nav aria-label="Kinds" className="card catalogue-list nav">
        {data.items.map(({ name }) => (
          <Link
            key={name}
            to="/events"
            search={{ kind: name }}
            className="nav-link mono"
            aria-current={name === chosen?.name ? 'page' : undefined}
          >
            {name}
          </Link>
        ))}
      </nav>
      {chosen !== undefined && (
        <div className="stack">
          <Card>
            <KindDetails key={chosen.name} kind={chosen} level={2} />
          </Card>
          <SendExample key={chosen.name} kind={chosen} />
        </div>
      )}
    </div>
  );
}

function SendExample({ kind }: { kind: EventKind }) {
  const { data } = useInfiniteQuery(subscriptionsQuery);
  const [chosen, setChosen] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const navigate = useNavigate();
  const subscriptions = (data?.pages ?? [])
    .flatMap((page) => page.items)
    .filter(({ state }) => state === 'active');
  const id = chosen ?? subscriptions[0]?.id;
  if (id === undefined) {
    return (
      <Notice title="Send this example">
        <p>
          <Link to="/subscriptions/new">Create a subscription</Link> to send this example to it.
        </p>
      </Notice>
    );
  }
  const sendIt = async () => {
    setPending(true);
    try {
      const { delivery } = await request('POST /subscriptions/{id}/test', {
        path: { id },
        body: { kind: kind.name as TestStart['kind'] },
      });
      await navigate({ to: '/deliveries/$id', params: { id: delivery } });
    } catch (error) {
      tellFailure(error);
      setPending(false);
    }
  };
  return (
    <Card
      title="Send this example"
      description="It goes to the selected subscription only, signed like any delivery."
    >
      <div className="field-with-button">
        <SelectField
          label="Subscription"
          value={id}
          onChange={setChosen}
          choices={subscriptions.map(({ id: each, url, description }) => ({
            id: each,
            title: nameOf({ description, url }),
          }))}
        />
        <Button look="primary" isPending={isPending} onPress={sendIt}>
          <Send size={16} aria-hidden /> Send
        </Button>
      </div>
    </Card>
  );
}
