/** The parts of the console. */

import { Link } from '@tanstack/react-router';
import { type LucideIcon, Webhook } from 'lucide-react';

interface Entry {
  to: string;
  title: string;
  icon: LucideIcon;
}

const entries: readonly Entry[] = [{ to: '/subscriptions', title: 'Subscriptions', icon: Webhook }];

export function Navigation({ onFollow }: { onFollow?: () => void }) {
  return (
    <nav aria-label="Console" className="nav">
      {entries.map((entry) => (
        <NavigationLink key={entry.to} entry={entry} onFollow={onFollow} />
      ))}
    </nav>
  );
}

function NavigationLink({
  entry: { to, title, icon: Icon },
  onFollow,
}: {
  entry: Entry;
  onFollow?: () => void;
}) {
  return (
    <Link to={to} className="nav-link" onClick={onFollow}>
      <Icon size={18} aria-hidden />
      {title}
    </Link>
  );
}
