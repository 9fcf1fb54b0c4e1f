/**
 * The operator's brand (section `brand` of `nuncio.config.ts`), shown instead of "Nuncio". brand_colors.ts adapts its color.
 */

import { readFileSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { isLoopbackHost } from '../config/config.ts';
import { reportUnknown } from '../shared/nearest.ts';

/** The section as declared. */
export interface BrandDeclaration {
  /**
   * 1 to 60 characters.
   * @default `'Nuncio'`
   */
  readonly name?: string;
  /**
   * A file beside `nuncio.config.ts`: PNG, JPEG, WebP or SVG, 256 KiB at most, read at start and served from
   * this origin. It is also the icon of every page; without a logo the icon is the first letter of the name.
   * @default none
   */
  readonly logo?: string;
  /**
   * The color of buttons, links and selected entries, and the theme color of the browser, such as
   * `'#3949c6'`. If the contrast is below 4.5, the color is darkened, or lightened in the dark theme. Text on
   * it is white or almost black.
   * @default none
   */
  readonly color?: string;
  /**
   * Links on every page of the server: `https`, or `http` on loopback. `support_url` can also be `mailto:`.
   * @default none
   */
  readonly support_url?: string;
  readonly privacy_url?: string;
  readonly terms_url?: string;
}

export interface Brand {
  readonly name: string;
  readonly logo: { readonly type: string; readonly bytes: Uint8Array } | null;
  readonly color: string | null;
  readonly supportUrl: string | null;
  readonly privacyUrl: string | null;
  readonly termsUrl: string | null;
}

type Report = (place: string, reason: string) => void;

const nameCharactersMax = 60;
const logoBytesMax = 262_144;
const members: Readonly<Record<keyof BrandDeclaration, true>> = {
  name: true,
  logo: true,
  color: true,
  support_url: true,
  privacy_url: true,
  terms_url: true,
};

/**
 * @param folder the folder of the logo's file
 * @param report called with the place and reason of each problem
 */
export function readBrand(declared: BrandDeclaration | undefined, folder: string, report: Report): Brand {
  const given = declared ?? {};
  reportUnknown(given, members, 'brand', report);
  const { name = 'Nuncio', color = null, logo } = given;
  if (typeof name !== 'string' || !/^(?=.*\S)\P{C}+$/u.test(name) || [...name].length > nameCharactersMax) {
    report('brand.name', `must have 1 to ${nameCharactersMax} visible characters`);
  }
  if (color !== null && !/^#[0-9a-f]{6}$/i.test(color)) {
    report('brand.color', 'must be a color like "#3949c6"');
  }
  return Object.freeze({
    name,
    color,
    logo: logo === undefined ? null : readLogo(logo, folder, report),
    supportUrl: readUrl(given.support_url, 'support_url', report),
    privacyUrl: readUrl(given.privacy_url, 'privacy_url', report),
    termsUrl: readUrl(given.terms_url, 'terms_url', report),
  });
}

function readUrl(value: unknown, name: string, report: Report): string | null {
  if (value === undefined) return null;
  const url = typeof value === 'string' ? URL.parse(value) : null;
  const isMail = name === 'support_url' && url?.protocol === 'mailto:' && url.pathname !== '';
  const isPage = url?.protocol === 'https:' || (url?.protocol === 'http:' && isLoopbackHost(url.hostname));
  if (url !== null && (isMail || isPage) && url.username === '' && url.password === '') return url.href;
  const kinds = name === 'support_url' ? 'https:// or mailto:' : 'https://';
  report(`brand.${name}`, `must be a URL that begins with ${kinds}, without credentials`);
  return null;
}

/** The logo's file, read once. */
function readLogo(file: unknown, folder: string, report: Report): Brand['logo'] {
  if (typeof file !== 'string' || file === '' || /^[a-z][a-z0-9+.-]+:/i.test(file)) {
    report('brand.logo', 'must be the path of a file');
    return null;
  }
  const path = resolve(folder, file);
  try {
    if (statSync(path).size > logoBytesMax) {
      report('brand.logo', `${path} has more than ${logoBytesMax} bytes`);
      return null;
    }
    const bytes = readFileSync(path);
    const type = typeOf(bytes);
    if (type !== null) return { type, bytes };
    report('brand.logo', `${path} is not a PNG, JPEG, WebP or SVG image`);
  } catch (error) {
    report('brand.logo', `${path} cannot be read: ${(error as Error).message}`);
  }
  return null;
}

function typeOf(bytes: Buffer): string | null {
  const start = bytes.toString('latin1', 0, 512);
  if (start.startsWith('\x89PNG\r\n\x1a\n')) return 'image/png';
  if (start.startsWith('\xff\xd8\xff')) return 'image/jpeg';
  if (start.startsWith('RIFF') && start.slice(8, 12) === 'WEBP') return 'image/webp';
  return /^\s*(?:<\?xml[^>]*>\s*|<!--[\s\S]*?-->\s*)*<svg[\s>]/.test(start.replace(/^\xef\xbb\xbf/, ''))
    ? 'image/svg+xml'
    : null;
}
