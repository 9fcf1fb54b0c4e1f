/** The page of commands, from the help of each command. */

import { commandOptions } from '../../src/commands/command_line.ts';
import { commands } from '../../src/commands/commands.ts';
import { anchorOf, code, generatedNotice, table } from './markdown.ts';

const introduction = `# Commands

In a checkout a command is \`npm run -s nuncio -- <command>\`, and with the installed package \`npx nuncio <command>\`. A command works on the
database of the server: run it in the same folder, or with the same \`NUNCIO_DATA_DIR\` or \`DATABASE_URL\`. Settings are
[environment variables](../settings.md). [operations.md](../operations.md) says when to use which.

Exit codes: 0 for success, 1 for a failure, 2 for invalid usage. \`nuncio doctor\` has its own: 0 for no problem, 1 for warnings, 2 for
errors. Every command takes \`--help\`.`;

export async function commandsPage(): Promise<string> {
  const sections = await Promise.all(
    commands.map(async ({ name, summary, load }) => {
      const command = await load();
      const options = commandOptions(command);
      const usage = [
        'nuncio',
        name,
        ...(command.positionals ?? []),
        ...(options.length > 0 ? ['[options]'] : []),
      ];
      const rows = options.map(([option, meaning, repeats]) => [
        code(option),
        repeats === undefined ? meaning : `${meaning} (repeatable)`,
      ]);
      return [
        `## nuncio ${name}`,
        `${code(usage.join(' '))}: ${summary}.`,
        ...(rows.length > 0 ? [table(['option', 'meaning'], rows)] : []),
      ].join('\n\n');
    }),
  );
  const contents = table(
    ['command', 'what it does'],
    commands.map(({ name, summary }) => [`[${code(name)}](#${anchorOf(`nuncio ${name}`)})`, summary]),
  );
  return `${[generatedNotice, introduction, contents, ...sections].join('\n\n')}\n`;
}
