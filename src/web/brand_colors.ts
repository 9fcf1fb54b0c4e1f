/**
 * Adapts the operator's color to the pages, the reference and the console. If the contrast of text would be too low, the color
 * becomes darker in the light theme and lighter in the dark theme (WCAG 2.2 section 1.4.3).
 */

import type { MailBrand } from '../mail/render.ts';
import type { Brand } from './brand.ts';

/** As in pages.css. */
const defaultColor = '#3949c6';
const contrastMin = 4.5;
/** For parts that are not text (WCAG 2.2 section 1.4.11). */
const shapeContrastMin = 3;
const white = '#ffffff';
const black = '#000000';

/** A theme: background colors behind text in the brand color, and text colors on the brand color. */
interface Look {
  readonly grounds: readonly string[];
  readonly on: readonly [string, string];
  /** The color is mixed with this one until the contrast suffices. */
  readonly towards: string;
}

/** The themes of pages.css and reader.css. */
const pageLooks = {
  light: { grounds: [white, '#f4f5f8'], on: [white, '#12141b'], towards: black },
  dark: { grounds: ['#1c1f29', '#12141b'], on: ['#12141b', white], towards: white },
} as const satisfies Record<string, Look>;

/** The themes of the console's tokens.css. The first background is the surface of cards. */
const consoleLooks = {
  light: { grounds: [white, '#f6f7fa', '#f1f3f7', '#eef0f6'], on: [white, '#171b26'], towards: black },
  dark: {
    grounds: ['#171a22', '#0f1117', '#1e222c', '#12151c', '#222733'],
    on: ['#10131c', white],
    towards: white,
  },
} as const satisfies Record<string, Look>;

/** Share of the surface color in the background of a selected entry. */
const surfaceShares = { light: 0.9, dark: 0.86 } as const;

/** The style sheet of pages and the reference, with the closest readable color for each theme. */
export function brandStylesheet(color: string): string {
  const rule = (look: Look) => {
    const accent = readable(color, look.grounds, look.towards);
    return `:root{--accent:${accent};--on-accent:${textOn(accent, look.on)}}`;
  };
  return `${rule(pageLooks.light)}@media (prefers-color-scheme:dark){${rule(pageLooks.dark)}}\n`;
}

/** The console's tokens that depend on the color. Users choose the theme, so the tokens use `light-dark()`. */
export function consoleStylesheet(color: string): string {
  const light = consoleTokens(color, 'light');
  const dark = consoleTokens(color, 'dark');
  const tokens = (Object.keys(light) as (keyof ConsoleTokens)[]).map(
    (name) => `--${name}:light-dark(${light[name]},${dark[name]})`,
  );
  return `:root{${tokens.join(';')}}\n`;
}

interface ConsoleTokens {
  accent: string;
  'accent-strong': string;
  'accent-ground': string;
  'accent-fill': string;
  'on-accent': string;
}

function consoleTokens(color: string, name: keyof typeof consoleLooks): ConsoleTokens {
  const { grounds, on, towards } = consoleLooks[name];
  const accent = readable(color, grounds, towards);
  const ground = mix(accent, grounds[0], surfaceShares[name]);
  return {
    accent,
    'accent-strong': readable(mix(accent, towards, 0.15), [...grounds, ground], towards),
    'accent-ground': ground,
    // The thumb of a switch is white in both themes.
    'accent-fill': readable(accent, [white], black, shapeContrastMin),
    'on-accent': textOn(accent, on),
  };
}

/** The `theme-color` of pages, which browsers use for their own interface. */
export function themeColors(color: string): { light: string; dark: string } {
  return {
    light: readable(color, pageLooks.light.grounds, pageLooks.light.towards),
    dark: readable(color, pageLooks.dark.grounds, pageLooks.dark.towards),
  };
}

/** The brand in mails, which have a light ground in every mail program. */
export function mailBrand({
  name,
  color,
  supportUrl,
}: Pick<Brand, 'name' | 'color' | 'supportUrl'>): MailBrand {
  const accent = readable(color ?? defaultColor, pageLooks.light.grounds, pageLooks.light.towards);
  return { name, accent, onAccent: textOn(accent, pageLooks.light.on), supportUrl };
}

/** Black or white, whichever has more contrast with the color. */
export function inkOn(color: string): string {
  return contrast(color, white) >= contrast(color, black) ? white : black;
}

function textOn(color: string, candidates: readonly [string, string]): string {
  return candidates.find((text) => contrast(color, text) >= contrastMin) ?? candidates[0];
}

function readable(
  color: string,
  grounds: readonly string[],
  towards: string,
  ratioMin: number = contrastMin,
): string {
  for (let step = 0; step < 100; step += 1) {
    const mixed = mix(color, towards, step / 100);
    if (grounds.every((ground) => contrast(mixed, ground) >= ratioMin)) return mixed;
  }
  return towards;
}

function mix(color: string, towards: string, share: number): string {
  const target = channels(towards);
  const parts = channels(color).map((channel, index) =>
    Math.round(channel + ((target[index] ?? 0) - channel) * share),
  );
  return `#${parts.map((part) => part.toString(16).padStart(2, '0')).join('')}`;
}

function channels(color: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
}

/** WCAG 2.2: contrast ratio and relative luminance. */
export function contrast(one: string, other: string): number {
  const [darker = 0, lighter = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (lighter + 0.05) / (darker + 0.05);
}

function luminance(color: string): number {
  const [red = 0, green = 0, blue = 0] = channels(color).map((channel) => {
    const value = channel / 255;
    return value <= 0.040_45 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
