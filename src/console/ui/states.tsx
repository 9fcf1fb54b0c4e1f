/** Empty, loading and error states of a page. */

import type { LucideIcon } from 'lucide-react';
import { CircleAlert, CircleCheck, Info, TriangleAlert } from 'lucide-react';
import type { ReactNode } from 'react';
import { ApiError, describeFailure } from '../api/problem.ts';
import { Button } from './button.tsx';

interface EmptyProps {
  icon: LucideIcon;
  title: string;
  children: ReactNode;
  /** The next step. */
  action?: ReactNode;
}

export function Empty({ icon: Icon, title, children, action }: EmptyProps) {
  return (
    <div className="empty">
      <span className="empty-icon">
        <Icon size={24} aria-hidden />
      </span>
      <h2>{title}</h2>
      <p>{children}</p>
      {action}
    </div>
  );
}

const icons = { info: Info, warn: TriangleAlert, bad: CircleAlert, good: CircleCheck };

interface NoticeProps {
  look?: keyof typeof icons;
  title?: string;
  children?: ReactNode;
  role?: 'alert' | 'status';
}

export function Notice({ look = 'info', title, children, role }: NoticeProps) {
  const Icon = icons[look];
  return (
    <div className={`notice notice-${look}`} role={role}>
      <Icon size={18} aria-hidden />
      <div className="notice-body">
        {title !== undefined && <strong>{title}</strong>}
        {children}
      </div>
    </div>
  );
}

/** Errors that a retry does not fix. */
const refusals: Readonly<Record<number, { title: string; text: string }>> = {
  403: { title: 'You do not have access', text: 'Your account has no permission to view this page.' },
  404: { title: 'Not found', text: 'It does not exist, was deleted, or you have no access to it.' },
};

/** An error, with a retry where that can help. */
export function Failure({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const { status, requestId } = error instanceof ApiError ? error : { status: null, requestId: null };
  const { title, text } = refusals[status ?? 0] ?? {
    title: 'Could not load this',
    text: describeFailure(error),
  };
  return (
    <Notice look="bad" title={title} role="alert">
      <p>{text}</p>
      {requestId !== null && <p className="soft small">Request ID: {requestId}</p>}
      {onRetry !== undefined && !(status !== null && status in refusals) && (
        <div>
          <Button isSmall onPress={onRetry}>
            Try again
          </Button>
        </div>
      )}
    </Notice>
  );
}

/** Placeholder lines while content loads. */
export function Skeletons({ count = 4 }: { count?: number }) {
  return (
    <div className="card card-body stack" role="status" aria-label="Loading">
      {Array.from({ length: count }, (_, index) => (
        <span
          // biome-ignore lint/suspicious/noArrayIndexKey: all lines are alike
          key={index}
          className={index % 2 === 0 ? 'skeleton' : 'skeleton skeleton-short'}
        />
      ))}
    </div>
  );
}
