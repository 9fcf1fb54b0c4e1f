/** The section `apps` of `nuncio.config.ts`. */

import { reportUnknown } from '../shared/nearest.ts';

export interface AppSettings {
  /**
   * Who can create apps at `/apps` and in the console: every account, or only `'admins'`.
   * @default `'anyone'`
   */
  readonly creation: 'anyone' | 'admins';
  /**
   * With `true`, only members of an app can authorize it until an administrator has verified it. This applies
   * to every app that the operator did not register, including apps that register themselves.
   * @default `false`
   */
  readonly review: boolean;
}

export const defaultAppSettings: AppSettings = Object.freeze({ creation: 'anyone', review: false });

const choices: Readonly<Record<keyof AppSettings, readonly unknown[]>> = {
  creation: ['anyone', 'admins'],
  review: [true, false],
};

/** @param report called with the place and the reason of each problem */
export function readAppSettings(
  declared: Partial<AppSettings> | undefined,
  report: (place: string, reason: string) => void,
): AppSettings {
  const given = declared ?? {};
  reportUnknown(given, choices, 'apps', report);
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(choices, name)) continue;
    const allowed = choices[name as keyof AppSettings];
    if (!allowed.includes(value)) {
      report(`apps.${name}`, `must be ${allowed.map((choice) => JSON.stringify(choice)).join(' or ')}`);
    }
  }
  return Object.freeze({ ...defaultAppSettings, ...given });
}
