/** `nuncio doctor connect`: plays clients against a server from outside. Exit codes: 0 no problem, 1 warnings, 2 errors. */

import { connectProbes } from '../doctor/connect.ts';
import { examine, exitCodeOf, reportOf } from '../doctor/report.ts';
import { type Command, UsageError } from './command.ts';
import { printReport } from './print_report.ts';

export const doctorConnect: Command = {
  usesDatabase: false,
  positionals: ['URL'],
  options: [
    ['--json', 'print the report as JSON'],
    ['--all', 'also list what is fine'],
  ],
  async run({ values, positionals: [text = ''] }, context) {
    const url = URL.parse(text);
    if (url === null || !/^https?:$/.test(url.protocol) || url.search !== '' || url.username !== '') {
      throw new UsageError(`the URL is "${text}": it must be a base URL such as https://id.example.com`);
    }
    const probes = connectProbes(url.href.replace(/\/$/, ''));
    // Without a response there is nothing more to ask.
    const first = await examine(probes.slice(0, 1));
    const isReachable = first.checks.some(({ name }) => name !== 'connect.metadata');
    const rest = isReachable ? await examine(probes.slice(1)) : { checks: [] };
    const report = reportOf([...first.checks, ...rest.checks]);
    printReport(report, values, context);
    return exitCodeOf(report);
  },
};
