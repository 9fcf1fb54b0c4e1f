/** The sizes and themes in which the console is tested. */

import type { BrowserContextOptions } from 'playwright-core';
import { variants } from '../runner/tier.ts';

type Place = readonly [where: string, options: BrowserContextOptions];

export const phone: BrowserContextOptions = { viewport: { width: 390, height: 844 } };
export const desktop: BrowserContextOptions = { viewport: { width: 1440, height: 900 } };

const desktopInLight: Place = ['on a desktop in light', { ...desktop, colorScheme: 'light' }];
const desktopInDark: Place = ['on a desktop in dark', { ...desktop, colorScheme: 'dark' }];
const phoneInLight: Place = ['on a phone in light', { ...phone, colorScheme: 'light' }];
const phoneInDark: Place = ['on a phone in dark', { ...phone, colorScheme: 'dark' }];

/** For what a user does. */
export const storyPlaces = variants([desktopInLight, phoneInDark]);
/** For how each page looks. */
export const pagePlaces = variants([phoneInDark, desktopInLight, phoneInLight, desktopInDark]);
