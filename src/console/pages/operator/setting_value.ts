/** Values of settings as text for operators: with units, and one line for each member of an object. */

/** @param name of the setting or the member; it says the unit */
export function describeSetting(name: string, value: unknown): string {
  if (value === null) return 'not set';
  if (typeof value === 'boolean') return value ? 'on' : 'off';
  if (typeof value === 'number') return describeNumber(name, value);
  if (typeof value !== 'object') return String(value);
  if (!Array.isArray(value)) {
    return Object.entries(value)
      .map(([member, each]) => `${member}: ${describeSetting(member, each)}`)
      .join('\n');
  }
  const hasObjects = value.some((each) => typeof each === 'object');
  const texts = value.map((each) => describeSetting(name, each));
  return value.length === 0 ? 'none' : texts.join(hasObjects ? '\n\n' : ', ');
}

function describeNumber(name: string, value: number): string {
  if (name === 'NUNCIO_RETRY_SCHEDULE') return inUnits(value, durations);
  if (name === 'NUNCIO_RATE_LIMIT') return value === 0 ? 'no limit' : `${inGroups(value)} per minute`;
  if (/^NUNCIO_(?:CONCURRENT_REQUESTS|CLIENT_CONNECTIONS)$/.test(name) && value === 0) return 'no limit';
  if (/Bytes(?![a-z])/.test(name)) return inUnits(value, sizes);
  if (/Rate$/i.test(name)) return `${inGroups(value)} per second`;
  return /PORT$/.test(name) ? String(value) : inGroups(value);
}

type Units = readonly (readonly [name: string, size: number])[];

const durations: Units = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
];

const sizes: Units = [
  ['GiB', 1_073_741_824],
  ['MiB', 1_048_576],
  ['KiB', 1_024],
  ['bytes', 1],
];

/** In the largest unit that has no fraction, so that the value is exact. */
function inUnits(value: number, units: Units): string {
  const [name, size] = units.find(([, length]) => value >= length && value % length === 0) ?? ['', 1];
  return `${inGroups(value / size)} ${name || units.at(-1)?.[0]}`;
}

function inGroups(value: number): string {
  return value.toLocaleString('en');
}
