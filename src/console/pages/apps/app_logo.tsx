/** The logo of an app, or its initial. The name stands beside it, so a screen reader does not hear of it. */

import { useState } from 'react';

interface AppLogoProps {
  app: { client_name: string; _links: object };
  isLarge?: boolean;
}

export function AppLogo({ app, isLarge = false }: AppLogoProps) {
  const source = logoOf(app);
  // One that has just been removed, or whose app is suspended, is gone.
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

/** Where the server shows it; null without one. */
export function logoOf({ _links: links }: { _links: object }): string | null {
  return (links as { logo?: { href: string } }).logo?.href ?? null;
}
