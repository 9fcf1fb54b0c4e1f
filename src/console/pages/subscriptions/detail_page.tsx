/** One subscription: deliveries, health, settings, verification. */

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { Pause, Play, Trash2 } from 'lucide-react';
import { useState } from 'react';
import { TabPanel, Tabs } from 'react-aria-components';
import type { Subscription } from '../../api/generated.ts';
import { kindsQuery, subscriptionQuery } from '../../api/queries.ts';
import { request } from '../../api/request.ts';
import { Button } from '../../ui/button.tsx';
import { ConfirmDialog } from '../../ui/dialog.tsx';
import { Card, Page } from '../../ui/page.tsx';
import { Failure, Notice, Skeletons } from '../../ui/states.tsx';
import { TabList } from '../../ui/tab_list.tsx';
import { Ago, formatMinute } from '../../ui/time.tsx';
import { tell, tellFailure } from '../../ui/toasts.tsx';
import { DeliveryLog } from '../deliveries/log.tsx';
import { Recover } from '../deliveries/recover.tsx';
import { HealthView } from '../health/health_view.tsx';
import { describeAuth } from './auth_draft.ts';
import { draftOf, toPatch, writeSchedule } from './draft.ts';
import { FilterFact } from './filter/filter_fact.tsx';
import { SubscriptionForm } from './form.tsx';
import { KindTags } from './list_page.tsx';
import { SecretCard } from './secret_card.tsx';
import { formats, signatureShapes } from './signature_shapes.ts';
import { explainDisabled, SubscriptionBadge } from './state_badge.tsx';
import type { SubscriptionTab } from './tabs.ts';
import { SendTest, type TestEvent, TestOutcome } from './test_event.tsx';
import { Verification } from './verification.tsx';
import { versionNames } from './version_field.tsx';

const crumbs = [{ title: 'Subscriptions', to: '/subscriptions' }];

export function SubscriptionPage() {
  const { id } = useParams({ from: '/subscriptions/$id' });
  const { data, error, refetch } = useQuery(subscriptionQuery(id));
  if (error !== null) {
    return (
      <Page title="Subscription" crumbs={crumbs}>
        <Failure error={error} onRetry={refetch} />
      </Page>
    );
  }
  if (data === undefined) {
    return (
      <Page title="Subscription" crumbs={crumbs}>
        <Skeletons />
      </Page>
    );
  }
  return <SubscriptionDetails subscription={data} />;
}

/** Only the app can change a subscription that it created for the user. */
export function mayChange({ _links }: Subscription): boolean {
  return 'secret' in _links;
}

const tabs = [
  { id: 'overview', title: 'Overview' },
  { id: 'deliveries', title: 'Deliveries' },
  { id: 'health', title: 'Health' },
  { id: 'settings', title: 'Settings' },
] as const;

function SubscriptionDetails({ subscription }: { subscription: Subscription }) {
  const { tab = 'overview' } = useSearch({ from: '/subscriptions/$id' });
  const [test, setTest] = useState<TestEvent>(null);
  const navigate = useNavigate();
  return (
    <Page
      title={subscription.description === '' ? 'Subscription' : subscription.description}
      beside={<SubscriptionBadge subscription={subscription} />}
      description={
        subscription.url === null ? (
          'The app asks for the events. Nothing is sent.'
        ) : (
          <span className="mono">{subscription.url}</span>
        )
      }
      crumbs={crumbs}
      actions={<Actions subscription={subscription} onTest={setTest} />}
    >
      <Warnings subscription={subscription} />
      <TestOutcome id={subscription.id} test={test} />
      <Tabs
        selectedKey={tab}
        onSelectionChange={(key) =>
          void navigate({ to: '.', search: { tab: String(key) as SubscriptionTab }, replace: true })
        }
      >
        <TabList
          label="Sections of the subscription"
          selected={tab}
          tabs={tabs.filter(({ id }) => id !== 'settings' || mayChange(subscription))}
        />
        <TabPanel id="overview" className="tab-panel">
          <Overview subscription={subscription} />
        </TabPanel>
        <TabPanel id="deliveries" className="tab-panel">
          <DeliveryLog id={subscription.id} />
        </TabPanel>
        <TabPanel id="health" className="tab-panel">
          <HealthView source={{ kind: 'subscription', id: subscription.id }} />
        </TabPanel>
        <TabPanel id="settings" className="tab-panel">
          <Settings subscription={subscription} />
        </TabPanel>
      </Tabs>
    </Page>
  );
}

function Warnings({ subscription }: { subscription: Subscription }) {
  const { state, disabled_reason: reason, failing_since: since, disables_at: at } = subscription;
  if (state === 'disabled') {
    return (
      <Notice look="warn" title="Deliveries are paused">
        <p>{explainDisabled(reason)} Events are held: resume the subscription, then recover them.</p>
      </Notice>
    );
  }
  if (since === null) return null;
  return (
    <Notice look="bad" title="Deliveries are failing">
      <p>
        No delivery has succeeded since {formatMinute(since)}.
        {at !== null && ` The subscription will be disabled on ${formatMinute(at)} unless one does.`}
      </p>
    </Notice>
  );
}

interface ActionsProps {
  subscription: Subscription;
  onTest: (test: TestEvent) => void;
}

function Actions({ subscription, onTest }: ActionsProps) {
  const { id, state, agent } = subscription;
  const cache = useQueryClient();
  const [isPending, setPending] = useState(false);
  const act = async (work: () => Promise<unknown>, done: string) => {
    setPending(true);
    try {
      await work();
      tell(done);
    } catch (error) {
      tellFailure(error);
    } finally {
      setPending(false);
    }
  };
  const setState = async (next: 'active' | 'disabled') => {
    const changed = await request('PATCH /subscriptions/{id}', { path: { id }, body: { state: next } });
    cache.setQueryData(subscriptionQuery(id).queryKey, changed);
    await cache.invalidateQueries({ queryKey: ['subscriptions'] });
  };
  return (
    <>
      {state === 'active' && agent === null && <SendTest id={id} onSent={onTest} />}
      {mayChange(subscription) && state === 'active' && <Recover id={id} />}
      {mayChange(subscription) && state === 'active' && (
        <Button isPending={isPending} onPress={() => act(() => setState('disabled'), 'Subscription paused.')}>
          <Pause size={16} aria-hidden /> Pause
        </Button>
      )}
      {mayChange(subscription) && state === 'disabled' && (
        <Button
          look="primary"
          isPending={isPending}
          onPress={() => act(() => setState('active'), 'Subscription resumed.')}
        >
          <Play size={16} aria-hidden /> Resume
        </Button>
      )}
    </>
  );
}

function Overview({ subscription }: { subscription: Subscription }) {
  return (
    <div className="stack-large">
      <Card title="Details">
        <Facts subscription={subscription} />
      </Card>
      {mayChange(subscription) ? (
        <>
          {subscription.signature !== 'ed25519' && <SecretCard subscription={subscription} />}
          <Verification subscription={subscription} />
        </>
      ) : (
        <Notice title="Managed by an app">
          <p>
            The app that created this subscription manages its URL and secret. You can{' '}
            {subscription.agent === null && 'test it, '}view its deliveries and delete it.
          </p>
        </Notice>
      )}
      <DeleteCard subscription={subscription} />
    </div>
  );
}

/** Absent where no agent made the subscription. */
function AgentFact({ agent }: Pick<Subscription, 'agent'>) {
  if (agent === null) return null;
  return (
    <div>
      <dt>Made by an agent</dt>
      <dd>
        {agent.mode === 'webhook' ? 'Sent to it until ' : 'It asks for them. Kept until '}
        {formatMinute(agent.expires_at)}
      </dd>
    </div>
  );
}

function Facts({ subscription }: { subscription: Subscription }) {
  const shape = signatureShapes.find(({ id }) => id === subscription.signature);
  const { rate_limit: rate, retry_schedule: schedule, acknowledged } = subscription;
  return (
    <dl className="facts">
      <div>
        <dt>Kinds</dt>
        <dd>
          <KindTags kinds={subscription.kinds} />
        </dd>
      </div>
      <div>
        <dt>Signature</dt>
        <dd>{shape?.title}</dd>
      </div>
      <div>
        <dt>Format</dt>
        <dd>{formats.find(({ id }) => id === subscription.format)?.title}</dd>
      </div>
      <AgentFact agent={subscription.agent} />
      <VersionFact version={subscription.version} />
      {subscription.url !== null && (
        <>
          <div>
            <dt>Order</dt>
            <dd>{subscription.ordered ? 'Ordered' : 'Not ordered'}</dd>
          </div>
          <div>
            <dt>Rate limit</dt>
            <dd>{rate === null ? 'No limit' : `${rate} per second`}</dd>
          </div>
          <div>
            <dt>Retry schedule</dt>
            <dd>{schedule === null ? 'Server default' : writeSchedule(schedule)}</dd>
          </div>
          <div>
            <dt>Authentication</dt>
            <dd>{describeAuth(subscription.auth)}</dd>
          </div>
        </>
      )}
      {(acknowledged !== null || subscription.url === null) && (
        <div>
          <dt>Last acknowledged</dt>
          <dd>
            {acknowledged === null ? (
              'Never'
            ) : (
              <>
                Sequence {acknowledged.sequence}, <Ago time={acknowledged.at} />
              </>
            )}
          </dd>
        </div>
      )}
      <div>
        <dt>Created</dt>
        <dd>
          <Ago time={subscription.created_at} />
        </dd>
      </div>
      <div className="fact-wide">
        <dt>Filter</dt>
        <dd>
          <FilterFact subscription={subscription} mayClear={mayChange(subscription)} />
        </dd>
      </div>
      <div className="fact-wide">
        <dt>ID</dt>
        <dd className="mono">{subscription.id}</dd>
      </div>
    </dl>
  );
}

/** Absent where no kind has versions. */
function VersionFact({ version }: Pick<Subscription, 'version'>) {
  const { data } = useQuery(kindsQuery);
  const [newest] = versionNames(data?.items ?? []);
  if (newest === undefined) return null;
  return (
    <div>
      <dt>Version</dt>
      <dd>
        {version ?? 'Oldest of each kind'}
        {version !== newest && <span className="soft"> (newest: {newest})</span>}
      </dd>
    </div>
  );
}

function Settings({ subscription }: { subscription: Subscription }) {
  const { id } = subscription;
  const cache = useQueryClient();
  return (
    <SubscriptionForm
      key={subscription.updated_at}
      first={draftOf(subscription)}
      action="Save"
      onSubmit={async (draft) => {
        const changed = await request('PATCH /subscriptions/{id}', {
          path: { id },
          body: toPatch(draft, subscription),
        });
        cache.setQueryData(subscriptionQuery(id).queryKey, changed);
        await cache.invalidateQueries({ queryKey: ['subscriptions'] });
        tell('Saved. Applies to the next delivery.');
      }}
    />
  );
}

function DeleteCard({ subscription: { id, url } }: { subscription: Subscription }) {
  const [isOpen, setOpen] = useState(false);
  const cache = useQueryClient();
  const navigate = useNavigate();
  return (
    <>
      <Card
        isDanger
        title="Delete this subscription"
        description="Stops its deliveries and hides its delivery log."
        actions={
          <Button look="danger" onPress={() => setOpen(true)}>
            <Trash2 size={16} aria-hidden /> Delete
          </Button>
        }
      />
      <ConfirmDialog
        title="Delete this subscription?"
        action="Delete"
        isOpen={isOpen}
        onClose={() => setOpen(false)}
        onConfirm={async () => {
          await request('DELETE /subscriptions/{id}', { path: { id } });
          await navigate({ to: '/subscriptions' });
          cache.removeQueries({ queryKey: ['subscription', id] });
          await cache.invalidateQueries({ queryKey: ['subscriptions'] });
          tell('Subscription deleted.');
        }}
      >
        <p>
          <code>{url}</code> receives nothing from now on. Pending deliveries are cancelled. This cannot be
          undone.
        </p>
      </ConfirmDialog>
    </>
  );
}
