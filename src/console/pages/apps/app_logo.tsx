/** The logo of an app, or its initial. Hidden from screen readers, because the name is beside it. */

import { useState } from 'react';

interface AppLogoProps {
  app: { client_name: string; _links: object };
  isLarge?: boolean;
}

export function AppLogo({ app, isLarge = false }: AppLogoProps) {
  const source = logoOf(app);
  // A logo may be gone: removed, or its app suspended.
  const [gone, setGone] = useState<string | null>(null);
  const className = isLarge ? 'avatar avatar-square avatar-large' : 'avatar avatar-square';
  if (source === null || source === gone) {
    return (
      <span className={className} aria-hidden>
        {[...app.client_name][0]?.toUpperCase()}
      </span>
    );
  }
  return <img className={`${className} avatar-logo`} src={source} alt="" onError={() => setGone(source)} />;
}

/** The logo's URL; null if there is none. */
export function logoOf({ _links: links }: { _links: object }): string | null {
  return (links as { logo?: { href: string } }).logo?.href ?? null;
}
