/** Buttons, and links that look like them. */

import { createLink } from '@tanstack/react-router';
import type { AnchorHTMLAttributes, ReactNode, Ref } from 'react';
import { Button as AriaButton, type ButtonProps as AriaButtonProps } from 'react-aria-components';

export type ButtonLook = 'primary' | 'secondary' | 'ghost' | 'danger' | 'danger-solid';

interface Look {
  look?: ButtonLook;
  isSmall?: boolean;
  /** For a button that shows only an icon. It needs an `aria-label`. */
  isIcon?: boolean;
}

function classOf({ look = 'secondary', isSmall = false, isIcon = false }: Look): string {
  return ['button', `button-${look}`, isSmall && 'button-small', isIcon && 'button-icon']
    .filter(Boolean)
    .join(' ');
}

export interface ButtonProps extends Omit<AriaButtonProps, 'className' | 'style'>, Look {
  children?: ReactNode;
}

/** A pending button keeps the focus and does nothing. (The library's own state announces a label that may be gone.) */
export function Button({ look, isSmall, isIcon, isPending = false, onPress, type, ...props }: ButtonProps) {
  return (
    <AriaButton
      {...props}
      type={isPending ? 'button' : type}
      onPress={isPending ? undefined : onPress}
      className={classOf({ look, isSmall, isIcon })}
      render={isPending ? (own) => <button {...own} aria-disabled="true" data-pending="true" /> : undefined}
    />
  );
}

interface AnchorProps extends AnchorHTMLAttributes<HTMLAnchorElement>, Look {
  ref?: Ref<HTMLAnchorElement>;
}

function Anchor({ look, isSmall, isIcon, className, ...props }: AnchorProps) {
  return <a {...props} className={className ?? classOf({ look, isSmall, isIcon })} />;
}

/** A router link that looks like a button. */
export const ButtonLink = createLink(Anchor);
