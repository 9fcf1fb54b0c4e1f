/** Prints a report of the doctor. */

import { type Check, countText, type Report } from '../doctor/report.ts';
import type { CommandContext, OptionValues } from './command.ts';

export function printReport(
  report: Report,
  values: OptionValues,
  { print }: Pick<CommandContext, 'print'>,
): void {
  if (values.json === true) {
    print(JSON.stringify(report, null, 2));
    return;
  }
  const shown = report.checks.filter(({ state }) => values.all === true || state !== 'ok');
  for (const { name, state, summary, advice } of shown) {
    print(`${state.padEnd(8)} ${name}: ${summary}`);
    if (advice !== null) print(`${' '.repeat(9)}→ ${advice}`);
  }
  const count = (state: Check['state']) => report.checks.filter((each) => each.state === state).length;
  print(
    `${countText(count('error'), 'error')}, ${countText(count('warning'), 'warning')}, ${countText(count('notice'), 'notice')}; ${count('ok')} checks are fine`,
  );
}
