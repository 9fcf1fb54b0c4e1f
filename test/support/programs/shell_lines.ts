/** Reads the command lines of documents: enough of a shell for quotes, comments, continued lines and lists of commands. */

/** Returns the words of each command, without variables that are set before it. */
export function commandsIn(text: string): string[][] {
  return text
    .replaceAll(/\\\n\s*/g, ' ')
    .split('\n')
    .flatMap(commandsOfLine)
    .map((words) => words.slice(words.findIndex((word) => !/^[A-Z_]+=/.test(word)) >>> 0))
    .filter((words) => words.length > 0);
}

function commandsOfLine(line: string): string[][] {
  const commands: string[][] = [[]];
  const token = /\s*(?:(#.*$)|(&&|\|\||[|;])|((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"';|&#]|(?<=\S)#)+))/gy;
  for (const [, comment, separator, word] of line.matchAll(token)) {
    if (comment !== undefined) break;
    if (separator !== undefined) commands.push([]);
    else if (word !== undefined) commands.at(-1)?.push(word.replaceAll(/["']/g, ''));
  }
  return commands;
}

/** Where the words of `nuncio` begin; -1 if the command is another one. */
function startOf(words: readonly string[]): number {
  const line = words.join(' ');
  if (words[0] === 'nuncio') return 1;
  if (line.startsWith('npx nuncio')) return 2;
  if (line.startsWith('npm run -s nuncio --')) return 5;
  const script = words.findIndex((word) => word.endsWith('/nuncio/dist/main.js'));
  return script < 0 ? -1 : script + 1;
}

export function isNuncio(words: readonly string[]): boolean {
  return startOf(words) >= 0;
}

export function nuncioWords(words: readonly string[]): string[] {
  return words.slice(startOf(words));
}

/** The request that a command line of curl makes; null for another program. */
export function requestOf(words: readonly string[]): { method: string; path: string } | null {
  if (words[0] !== 'curl') return null;
  const url = words.find((word) => /^(?:https?:\/\/|\$\w+\/)/.test(word)) ?? '';
  const path = url.replace(/^(?:https?:\/\/[^/]+|\$\w+)/, '').split('?')[0] ?? '';
  const named = words[words.findIndex((word) => word === '-X' || word === '--request') + 1];
  const hasMethod = words.includes('-X') || words.includes('--request');
  const hasBody = words.some((word) => /^(?:-d|--data.*|--json)$/.test(word));
  return { method: hasMethod ? (named ?? '') : hasBody ? 'POST' : 'GET', path };
}
