/** A page: breadcrumbs, title, actions and content. */

import { Link } from '@tanstack/react-router';
import { type ReactNode, useEffect, useRef } from 'react';
import { brandName } from './brand.ts';

export interface Crumb {
  title: string;
  to: string;
}

interface PageProps {
  title: string;
  /** Before the title, such as a logo. */
  before?: ReactNode;
  /** Beside the title, such as a state. */
  beside?: ReactNode;
  description?: ReactNode;
  crumbs?: readonly Crumb[];
  actions?: ReactNode;
  children: ReactNode;
}

let isFirstPage = true;

export function Page({ title, before, beside, description, crumbs = [], actions, children }: PageProps) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${title} · ${brandName} console`;
  }, [title]);
  useEffect(() => {
    // After a navigation, screen readers announce the new page's title. They read the first page from its top.
    if (!isFirstPage) heading.current?.focus();
    isFirstPage = false;
  }, []);
  return (
    <div className="page">
      <div className="page-head">
        <div className="page-title">
          {crumbs.length > 0 && (
            <nav aria-label="Breadcrumbs">
              <ol className="crumbs">
                {crumbs.map((crumb) => (
                  <li key={crumb.to}>
                    <Link to={crumb.to}>{crumb.title}</Link>
                  </li>
                ))}
              </ol>
            </nav>
          )}
          <div className="row">
            {before}
            <h1 ref={heading} tabIndex={-1}>
              {title}
            </h1>
            {beside}
          </div>
          {description !== undefined && <p className="soft">{description}</p>}
        </div>
        {actions !== undefined && <div className="row">{actions}</div>}
      </div>
      {children}
    </div>
  );
}

interface CardProps {
  title?: ReactNode;
  actions?: ReactNode;
  description?: ReactNode;
  /** For content without padding, such as a table. */
  isFlush?: boolean;
  isDanger?: boolean;
  foot?: ReactNode;
  children?: ReactNode;
}

export function Card({
  title,
  actions,
  description,
  isFlush = false,
  isDanger = false,
  foot,
  children,
}: CardProps) {
  return (
    <section className={isDanger ? 'card danger-zone' : 'card'}>
      {title !== undefined && (
        <div className="card-head">
          <div>
            <h2>{title}</h2>
            {description !== undefined && <p className="soft small">{description}</p>}
          </div>
          {actions !== undefined && <div className="row">{actions}</div>}
        </div>
      )}
      {children !== undefined && (isFlush ? children : <div className="card-body">{children}</div>)}
      {foot !== undefined && <div className="card-foot">{foot}</div>}
    </section>
  );
}
