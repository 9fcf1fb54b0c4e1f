/** Code and secrets to copy. Secrets are hidden until the user shows them. */

import { Check, Copy, Eye, EyeOff } from 'lucide-react';
import { useEffect, useState } from 'react';
import { Button } from './button.tsx';
import { tellFailure } from './toasts.tsx';

export function CopyButton({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [isCopied, setCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return;
    const timer = setTimeout(() => setCopied(false), 2_000);
    return () => clearTimeout(timer);
  }, [isCopied]);
  const copy = () => navigator.clipboard.writeText(text).then(() => setCopied(true), tellFailure);
  return (
    <Button look="ghost" isSmall isIcon aria-label={isCopied ? 'Copied' : label} onPress={copy}>
      {isCopied ? <Check size={16} aria-hidden /> : <Copy size={16} aria-hidden />}
    </Button>
  );
}

export function CodeBlock({ code, title, label }: { code: string; title?: string; label: string }) {
  return (
    <div className="code-block">
      <div className="code-block-head">
        <span>{title ?? label}</span>
        <CopyButton text={code} label={`Copy ${label}`} />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard */}
      <section tabIndex={0} aria-label={label} className="code-scroll">
        <pre>
          <code>{code}</code>
        </pre>
      </section>
    </div>
  );
}

export function Secret({ value, label }: { value: string; label: string }) {
  const [isShown, setShown] = useState(false);
  return (
    <div className="secret">
      <code>{isShown ? value : '•'.repeat(24)}</code>
      <Button
        look="ghost"
        isSmall
        isIcon
        aria-label={isShown ? `Hide ${label}` : `Show ${label}`}
        onPress={() => setShown(!isShown)}
      >
        {isShown ? <EyeOff size={16} aria-hidden /> : <Eye size={16} aria-hidden />}
      </Button>
      <CopyButton text={value} label={`Copy ${label}`} />
    </div>
  );
}
