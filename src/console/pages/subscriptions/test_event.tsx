/** Sends a test event and shows what became of it: each attempt until it is accepted or given up. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { Send } from 'lucide-react';
import { type ReactNode, useEffect, useState } from 'react';
import { deliveryQuery } from '../../api/deliveries.ts';
import type { DeliveryDetails } from '../../api/generated.ts';
import { ApiError, describeFailure } from '../../api/problem.ts';
import { subscriptionQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { Notice } from '../../ui/states.tsx';
import { formatMs, Until } from '../../ui/time.tsx';
import { adviceFor } from '../deliveries/advice.ts';
import { nameResult } from '../deliveries/delivery_badge.tsx';

/** Nothing was sent, the test delivery, or the reason why there is none. */
export type TestEvent = { delivery: string } | { refusal: unknown } | null;

interface SendTestProps {
  id: string;
  onSent: (test: TestEvent) => void;
}

export function SendTest({ id, onSent }: SendTestProps) {
  const cache = useQueryClient();
  const [isPending, setPending] = useState(false);
  const send = async () => {
    setPending(true);
    onSent(null);
    try {
      onSent(await request('POST /subscriptions/{id}/test', { path: { id }, body: {} }));
    } catch (error) {
      onSent({ refusal: error });
      // It may have been paused or deleted elsewhere.
      if (error instanceof ApiError) await cache.invalidateQueries(subscriptionQuery(id));
    }
    setPending(false);
  };
  return (
    <Button isPending={isPending} onPress={send}>
      <Send size={16} aria-hidden /> Send test event
    </Button>
  );
}

export function TestOutcome({ id, test }: { id: string; test: TestEvent }) {
  if (test === null) return null;
  if ('delivery' in test) return <Outcome key={test.delivery} subscription={id} id={test.delivery} />;
  const { refusal } = test;
  const isPaused = refusal instanceof ApiError && refusal.code === 'subscription-disabled';
  return (
    <Notice look={isPaused ? 'warn' : 'bad'} title="The test event was not sent" role="alert">
      <p>
        {isPaused
          ? 'The subscription is paused. Resume it, then send the test event again.'
          : describeFailure(refusal)}
      </p>
    </Notice>
  );
}

/** Milliseconds between requests until the first attempt has ended, which takes at most 20 seconds once it starts. */
const firstPauseMs = 500;
const pauseMs = 1_500;
const patienceMs = 25_000;
const noticeableMs = 2_000;

function Outcome({ subscription, id }: { subscription: string; id: string }) {
  const cache = useQueryClient();
  const [sentAt] = useState(() => performance.now());
  const { data, error } = useQuery({
    ...deliveryQuery(id),
    refetchInterval: ({ state: { data: read } }) => {
      // A response that disables the subscription does so before the attempt is in the log.
      const isFirst = read === undefined || read.attempt_count === 0;
      if (isFirst && performance.now() - sentAt < patienceMs) return firstPauseMs;
      return read === undefined || read.next_attempt_at !== null ? pauseMs : false;
    },
  });
  const status = data?.last_status;
  useEffect(() => {
    // 410 Gone disables the subscription.
    if (status === 410) void cache.invalidateQueries(subscriptionQuery(subscription));
  }, [cache, status, subscription]);
  if (data === undefined) {
    return (
      <Notice look={error === null ? 'info' : 'bad'} title="Sending the test event…" role="status">
        {error !== null && <p>The outcome cannot be read. {describeFailure(error)}</p>}
      </Notice>
    );
  }
  const { look, title, text } = describe(data, performance.now() - sentAt);
  return (
    <Notice look={look} title={title} role="status">
      {text}
      <p>
        <Link to="/deliveries/$id" params={{ id }}>
          View the test delivery
        </Link>
      </p>
    </Notice>
  );
}

interface Description {
  look: 'info' | 'good' | 'warn' | 'bad';
  title: string;
  text: ReactNode;
}

function describe(delivery: DeliveryDetails, waitedMs: number): Description {
  const last = delivery.attempts.at(-1);
  if (last === undefined) return describeWaiting(delivery, waitedMs);
  const result = [
    nameResult(last.status, last.error),
    last.duration_ms !== null && formatMs(last.duration_ms),
  ];
  const facts = result.filter(Boolean).join(' · ');
  const advice = adviceFor(last);
  if (advice === null) return { look: 'good', title: `Delivered · ${facts}`, text: null };
  return {
    look: 'bad',
    title: `Failed · ${facts}`,
    text: (
      <>
        <p>{advice.reason}</p>
        <p>{advice.todo}</p>
        <ResponseStart attempt={last} />
        <p className="soft small">
          <NextAttempt delivery={delivery} />
        </p>
      </>
    ),
  };
}

function NextAttempt({ delivery: { state, next_attempt_at: next } }: { delivery: DeliveryDetails }) {
  if (state === 'held') return 'No attempt follows while the subscription is paused.';
  if (next === null) return 'No automatic attempts are left.';
  return (
    <>
      Next attempt <Until time={next} />.
    </>
  );
}

function describeWaiting(delivery: DeliveryDetails, waitedMs: number): Description {
  const { state, created_at: created, next_attempt_at: next } = delivery;
  if (state === 'held' || state === 'cancelled') {
    const text =
      state === 'held'
        ? 'The subscription was paused. Resume it, then send the test event again.'
        : 'Its owner has lost the right to the event.';
    return { look: 'warn', title: 'Not sent', text: <p>{text}</p> };
  }
  // Two times of the server: the browser's clock may be wrong.
  const isPaused = next !== null && Date.parse(next) > Date.parse(created) + noticeableMs;
  if (!isPaused && waitedMs < patienceMs) {
    return { look: 'info', title: 'Waiting for the response…', text: null };
  }
  return {
    look: 'warn',
    title: 'Not sent yet',
    text: isPaused ? (
      <p>
        Deliveries to this URL pause after repeated failures. The first attempt starts <Until time={next} />.
      </p>
    ) : (
      <p>It waits behind other deliveries of this subscription.</p>
    ),
  };
}

/** Characters of the response that are shown. */
const charactersMax = 300;

function ResponseStart({ attempt: { response } }: { attempt: DeliveryDetails['attempts'][number] }) {
  if (response === null || response.encoding === 'base64' || response.body.trim() === '') return null;
  const { body } = response;
  return (
    <pre className="response-start">
      {body.length > charactersMax ? `${body.slice(0, charactersMax)}…` : body}
    </pre>
  );
}
