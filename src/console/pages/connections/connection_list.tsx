/** Connections of apps: each attempt with its steps, and why one was refused. */

import { ChevronRight, Plug } from 'lucide-react';
import type { ReactNode } from 'react';
import type { AppConnection, ConnectionStep } from '../../api/generated.ts';
import { Badge, type BadgeLook } from '../../ui/badge.tsx';
import { type ListQuery, PagedList } from '../../ui/paged_list.tsx';
import { Empty } from '../../ui/states.tsx';
import { formatExact } from '../../ui/time.tsx';

const looks: Readonly<Record<AppConnection['outcome'], BadgeLook>> = {
  open: 'still',
  connected: 'good',
  refused: 'bad',
};

const outcomes: Readonly<Record<AppConnection['outcome'], string>> = {
  open: 'Not finished',
  connected: 'Connected',
  refused: 'Refused',
};

const titles: Readonly<Record<ConnectionStep['name'], string>> = {
  discovery: 'Discovery',
  registration: 'Registration',
  'client-document': 'Client document',
  authorize: 'Authorization request',
  'sign-in': 'Sign-in',
  consent: 'Consent',
  code: 'Code',
  token: 'Token',
  call: 'First call',
  delivery: 'First delivery',
};

interface ConnectionListProps<Item extends AppConnection> {
  query: ListQuery<Item>;
  /** Whether the list is searched. */
  isFiltered?: boolean;
  /** Whose connection it is, for lists of several apps. */
  nameOf?: (connection: Item) => string;
  /** What to show of a connection besides its steps. */
  about?: (connection: Item) => ReactNode;
}

export function ConnectionList<Item extends AppConnection>({
  query,
  isFiltered = false,
  nameOf,
  about,
}: ConnectionListProps<Item>) {
  return (
    <PagedList
      query={query}
      nothing={() => (
        <Empty icon={Plug} title={isFiltered ? 'No such connection' : 'No connections'}>
          Attempts to connect appear here within seconds.
        </Empty>
      )}
    >
      {(items) => (
        <ul className="connections">
          {items.map((connection) => (
            <li key={connection.id}>
              <ConnectionItem
                connection={connection}
                name={nameOf?.(connection)}
                about={about?.(connection)}
              />
            </li>
          ))}
        </ul>
      )}
    </PagedList>
  );
}

interface ConnectionItemProps {
  connection: AppConnection;
  name: string | undefined;
  about: ReactNode;
}

function ConnectionItem({ connection, name, about }: ConnectionItemProps) {
  const { started_at: startedAt, outcome, steps } = connection;
  const refused = steps.findLast((step) => step.outcome === 'refused');
  return (
    <details open={outcome === 'refused'}>
      <summary>
        <ChevronRight className="connection-mark" size={16} aria-hidden />
        <Badge look={looks[outcome]}>{outcomes[outcome]}</Badge>
        <span className="connection-about">
          <time dateTime={startedAt}>{formatExact(startedAt)}</time>
          {name !== undefined && <strong>{name}</strong>}
        </span>
        <span className="soft small">{summaryOf(connection, refused)}</span>
      </summary>
      {about}
      <ol className="connection-steps">
        {steps.map((step) => (
          <Step key={`${step.name} ${step.at} ${step.request}`} step={step} />
        ))}
      </ol>
    </details>
  );
}

function summaryOf({ outcome, steps }: AppConnection, refused: ConnectionStep | undefined): string {
  const last = refused ?? steps.at(-1);
  if (last === undefined) return '';
  if (refused === undefined) return `Last step: ${titles[last.name]}`;
  // A connected app can be refused later.
  return outcome === 'refused' ? `Refused at: ${titles[last.name]}` : `${titles[last.name]} was refused`;
}

function Step({ step }: { step: ConnectionStep }) {
  const { name, at, outcome, error, explanation, request } = step;
  return (
    <li className={`connection-step step-${outcome}`}>
      <p>
        <strong>{titles[name]}</strong> {outcome === 'refused' && <Badge look="bad">Refused</Badge>}{' '}
        {error !== null && <code>{error}</code>}
      </p>
      {explanation !== null && <p className="connection-explanation">{explanation}</p>}
      <p className="soft small">
        <time dateTime={at}>{formatExact(at)}</time>
        {request !== null && (
          <>
            {' · request '}
            <code>{request}</code>
          </>
        )}
      </p>
    </li>
  );
}
