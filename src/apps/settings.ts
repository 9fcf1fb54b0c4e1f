/** What the operator may change about apps: the section `apps` of `nuncio.config.ts`. */

export interface AppSettings {
  /** Who may make apps over `/apps`: every account, or administrators alone. */
  readonly creation: 'anyone' | 'admins';
  /** Whether only an app's members may authorize it until an administrator has verified it. */
  readonly review: boolean;
}

export const defaultAppSettings: AppSettings = Object.freeze({ creation: 'anyone', review: false });

const choices: Readonly<Record<keyof AppSettings, readonly unknown[]>> = {
  creation: ['anyone', 'admins'],
  review: [true, false],
};

/** @param report told of each problem: its place and the reason */
export function readAppSettings(
  declared: Partial<AppSettings> | undefined,
  report: (place: string, reason: string) => void,
): AppSettings {
  const given = declared ?? {};
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(choices, name)) {
      report(`apps.${name}`, 'there is no such setting');
      continue;
    }
    const allowed = choices[name as keyof AppSettings];
    if (!allowed.includes(value)) {
      report(`apps.${name}`, `it may be ${allowed.map((choice) => JSON.stringify(choice)).join(' or ')}`);
    }
  }
  return Object.freeze({ ...defaultAppSettings, ...given });
}
