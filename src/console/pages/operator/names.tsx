/** Names of accounts and apps with links, for the operator's lists. Their ids can be copied. */

import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { CopyButton } from '../../ui/copy.tsx';

interface NamedProps {
  id: string;
  /** Null if it was deleted: then the id stands for it. */
  name: string | null;
}

export function AccountName({ id, name }: NamedProps) {
  const link = name !== null && (
    <Link to="/operator/accounts" search={{ account: id }}>
      {name}
    </Link>
  );
  return <WithId className="named-id named-account" id={id} name={link} label="account ID" />;
}

/** The server's own apps have no page. */
const ownClientIds = ['nuncio-console', 'nuncio-docs'];

export function ClientName({ id, name }: NamedProps) {
  const link =
    name === null || ownClientIds.includes(id) ? (
      name
    ) : (
      <Link to="/apps/$id" params={{ id }}>
        {name}
      </Link>
    );
  return <WithId className="named-id" id={id} name={link} label="client ID" />;
}

interface WithIdProps {
  className: string;
  id: string;
  name: ReactNode;
  label: string;
}

function WithId({ className, id, name, label }: WithIdProps) {
  return (
    <span className={className} title={id}>
      {name || <span className="mono breakable">{id}</span>}
      <CopyButton text={id} label={`Copy ${label} ${id}`} />
    </span>
  );
}
