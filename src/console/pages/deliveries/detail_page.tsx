/** One delivery: request, response, the reason of a failure and advice. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { Link, useParams } from '@tanstack/react-router';
import { RefreshCw } from 'lucide-react';
import { useState } from 'react';
import { deliveryQuery } from '../../api/deliveries.ts';
import type { Attempt, DeliveryDetails } from '../../api/generated.ts';
import { subscriptionQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Badge } from '../../ui/badge.tsx';
import { Button } from '../../ui/button.tsx';
import { CodeBlock } from '../../ui/copy.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { Ago, formatExact, formatMs, Until } from '../../ui/time.tsx';
import { tell, tellFailure } from '../../ui/toasts.tsx';
import { nameOf } from '../subscriptions/list_page.tsx';
import { adviceFor } from './advice.ts';
import { CurlCommand } from './curl_command.tsx';
import { DeliveryBadge, isRetrying, nameResult } from './delivery_badge.tsx';
import { Waterfall } from './waterfall.tsx';

export function DeliveryPage() {
  const { id } = useParams({ from: '/deliveries/$id' });
  const { data, error, refetch } = useQuery(deliveryQuery(id));
  const crumbs = [{ title: 'Deliveries', to: '/deliveries' }];
  if (data === undefined) {
    return (
      <Page title="Delivery" crumbs={crumbs}>
        {error === null ? <Skeletons /> : <Failure error={error} onRetry={refetch} />}
      </Page>
    );
  }
  return (
    <Page
      title={data.kind}
      beside={<DeliveryBadge delivery={data} />}
      description={<span className="mono">{data.id}</span>}
      crumbs={crumbs}
      actions={<Resend delivery={data} />}
    >
      <Outcome delivery={data} />
      <Card title="Details">
        <Facts delivery={data} />
      </Card>
      <Attempts delivery={data} />
      <Card title="Body" description="Formatted for reading.">
        {data.body === null ? (
          <p className="soft">The body of this event was erased.</p>
        ) : (
          <CodeBlock label="Body" code={JSON.stringify(data.body, null, 2)} />
        )}
      </Card>
    </Page>
  );
}

function Resend({ delivery: { id, state } }: { delivery: DeliveryDetails }) {
  const cache = useQueryClient();
  const [isPending, setPending] = useState(false);
  if (state === 'cancelled') return null;
  const resend = async () => {
    setPending(true);
    try {
      await request('POST /deliveries/{id}/resend', { path: { id }, body: {} });
      tell('Resent with the same ID.');
    } catch (error) {
      tellFailure(error);
    }
    await cache.invalidateQueries({ queryKey: ['delivery', id] });
    setPending(false);
  };
  return (
    <Button look="primary" isPending={isPending} onPress={resend}>
      <RefreshCw size={16} aria-hidden /> Resend
    </Button>
  );
}

function Outcome({ delivery }: { delivery: DeliveryDetails }) {
  const last = delivery.attempts.at(-1);
  const advice = last === undefined ? null : adviceFor(last);
  if (delivery.state === 'held') {
    return (
      <Notice look="warn" title="Held">
        <p>The subscription is paused. Resume it, then recover the held deliveries.</p>
      </Notice>
    );
  }
  if (advice === null) return null;
  return (
    <Notice look={isRetrying(delivery) ? 'warn' : 'bad'} title={advice.reason}>
      <p>{advice.todo}</p>
      <p className="soft small">
        {delivery.next_attempt_at === null ? (
          'No automatic attempts are left. Resend it when the receiver is ready.'
        ) : (
          <>
            Next attempt <Until time={delivery.next_attempt_at} />. Resend it to skip the retry schedule.
          </>
        )}
      </p>
    </Notice>
  );
}

function Facts({ delivery }: { delivery: DeliveryDetails }) {
  return (
    <dl className="facts">
      <div>
        <dt>Created</dt>
        <dd>
          <Ago time={delivery.created_at} />
        </dd>
      </div>
      <div>
        <dt>Attempts</dt>
        <dd>{delivery.attempt_count}</dd>
      </div>
      <div>
        <dt>Sequence</dt>
        <dd>{delivery.sequence}</dd>
      </div>
      <div>
        <dt>Subscription</dt>
        <dd>
          <SubscriptionLink id={delivery.subscription} />
        </dd>
      </div>
      <div className="fact-wide">
        <dt>Event</dt>
        <dd className="mono">{delivery.event}</dd>
      </div>
    </dl>
  );
}

function SubscriptionLink({ id }: { id: string }) {
  const { data } = useQuery(subscriptionQuery(id));
  return (
    <Link to="/subscriptions/$id" params={{ id }} search={{ tab: 'deliveries' }}>
      {data === undefined ? 'View' : nameOf(data)}
    </Link>
  );
}

function Attempts({ delivery }: { delivery: DeliveryDetails }) {
  const { attempts } = delivery;
  const [chosen, setChosen] = useState<string | null>(null);
  if (attempts.length === 0) {
    return (
      <Card title="Attempts">
        <p className="soft">No attempts yet.</p>
      </Card>
    );
  }
  const keyOf = (attempt: Attempt) => `${attempt.number} ${attempt.at}`;
  const shown = attempts.find((attempt) => keyOf(attempt) === chosen) ?? (attempts.at(-1) as Attempt);
  return (
    <Card title="Attempts" isFlush>
      <div className="attempts">
        <ol className="attempt-list">
          {attempts.toReversed().map((attempt) => (
            <li key={keyOf(attempt)}>
              <button
                type="button"
                className="attempt-button"
                aria-current={attempt === shown ? 'true' : undefined}
                onClick={() => setChosen(keyOf(attempt))}
              >
                <span className="row-between">
                  <strong>Attempt {attempt.number}</strong>
                  <AttemptBadge attempt={attempt} />
                </span>
                <span className="soft small">
                  <Ago time={attempt.at} />
                  {attempt.duration_ms !== null && ` · ${formatMs(attempt.duration_ms)}`}
                  {attempt.trigger === 'manual' && ' · resent'}
                  {attempt.trigger === 'recovery' && ' · recovered'}
                </span>
              </button>
            </li>
          ))}
        </ol>
        <div className="attempt-details">
          <AttemptDetails attempt={shown} delivery={delivery} />
        </div>
      </div>
    </Card>
  );
}

function AttemptBadge({ attempt: { error, status } }: { attempt: Attempt }) {
  return <Badge look={error === null ? 'good' : 'bad'}>{nameResult(status, error)}</Badge>;
}

const connectionNames: Readonly<Record<string, string>> = {
  kept: 'reused connection',
  'new, IPv4': 'new IPv4 connection',
  'new, IPv6': 'new IPv6 connection',
};

interface AttemptDetailsProps {
  attempt: Attempt;
  delivery: DeliveryDetails;
}

function AttemptDetails({ attempt, delivery: { body, subscription } }: AttemptDetailsProps) {
  const { request: sent, response } = attempt;
  return (
    <div className="stack">
      <p className="soft small">
        {formatExact(attempt.at)}
        {attempt.connection != null && ` · ${connectionNames[attempt.connection] ?? attempt.connection}`}
        {/* A status says it by itself. */}
        {attempt.status === null && attempt.error_detail != null && ` · ${attempt.error_detail}`}
      </p>
      <Waterfall attempt={attempt} />
      {sent !== null && (
        <CodeBlock label="Request" code={`POST ${sent.url}\n${writeHeaders(sent.headers)}`} />
      )}
      {response !== null && (
        <CodeBlock
          label="Response"
          title={titleOfResponse(response)}
          code={`${attempt.status}\n${writeHeaders(response.headers)}\n\n${response.body}`}
        />
      )}
      {attempt.response_omitted === true && (
        <Notice title="The response is not stored">
          <p>
            Either the responses to this account’s deliveries had filled their storage for that day (UTC), or
            this server deletes responses earlier than deliveries. Deliveries are not affected. The status and
            the timing are kept. Short responses save storage: a 204 without a body is enough.
          </p>
        </Notice>
      )}
      {sent !== null && body !== null && (
        <CurlCommand
          key={`${attempt.number} ${attempt.at}`}
          attempt={{ ...attempt, request: sent }}
          body={body}
          subscription={subscription}
        />
      )}
    </div>
  );
}

function titleOfResponse({ truncated, encoding }: NonNullable<Attempt['response']>): string {
  const notes = [truncated && 'first 16 KiB', encoding === 'base64' && 'body in base64'].filter(Boolean);
  return notes.length === 0 ? 'Response' : `Response (${notes.join(', ')})`;
}

function writeHeaders(headers: Record<string, string | string[]>): string {
  return Object.entries(headers)
    .flatMap(([name, value]) => [value].flat().map((each) => `${name}: ${each}`))
    .join('\n');
}
