/** The console's navigation. */

import { Link } from '@tanstack/react-router';
import {
  AppWindow,
  BookOpen,
  FileWarning,
  HeartPulse,
  Inbox,
  LayoutGrid,
  type LucideIcon,
  Plug,
  Radio,
  ScrollText,
  Server,
  Settings,
  Stethoscope,
  Users,
  Webhook,
} from 'lucide-react';
import { hasScope } from '../session/session.ts';

interface Entry {
  to: string;
  title: string;
  icon: LucideIcon;
  /** Whether pages below its path belong to other entries. */
  isExact?: boolean;
}

const entries: readonly Entry[] = [
  { to: '/apps', title: 'Apps', icon: AppWindow },
  { to: '/subscriptions', title: 'Subscriptions', icon: Webhook },
  { to: '/deliveries', title: 'Deliveries', icon: Inbox },
  { to: '/health', title: 'Health', icon: HeartPulse },
  { to: '/events', title: 'Events', icon: BookOpen },
];

const operatorEntries: readonly Entry[] = [
  { to: '/operator', title: 'Server', icon: Server, isExact: true },
  { to: '/operator/accounts', title: 'Accounts', icon: Users },
  { to: '/operator/apps', title: 'All apps', icon: LayoutGrid },
  { to: '/operator/subscriptions', title: 'All subscriptions', icon: Radio },
  { to: '/operator/rejected', title: 'Rejected events', icon: FileWarning },
  { to: '/operator/connections', title: 'Connections', icon: Plug },
  { to: '/operator/audit', title: 'Audit log', icon: ScrollText },
  { to: '/operator/doctor', title: 'Doctor', icon: Stethoscope },
  { to: '/operator/settings', title: 'Settings', icon: Settings },
];

export function Navigation({ onFollow }: { onFollow?: () => void }) {
  return (
    <nav aria-label="Console" className="nav">
      {entries.map((entry) => (
        <NavigationLink key={entry.to} entry={entry} onFollow={onFollow} />
      ))}
      {hasScope('admin') && (
        <>
          <p className="nav-title">Operator</p>
          {operatorEntries.map((entry) => (
            <NavigationLink key={entry.to} entry={entry} onFollow={onFollow} />
          ))}
        </>
      )}
    </nav>
  );
}

function NavigationLink({
  entry: { to, title, icon: Icon, isExact = false },
  onFollow,
}: {
  entry: Entry;
  onFollow?: () => void;
}) {
  return (
    <Link to={to} activeOptions={{ exact: isExact }} className="nav-link" onClick={onFollow}>
      <Icon size={18} aria-hidden />
      {title}
    </Link>
  );
}
