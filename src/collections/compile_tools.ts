/** Compiles the option `mcp` of a declaration (tool_options.ts), and reports every mistake with its place. */

import type { Report, ResourceType } from './resource_type.ts';
import type { CollectionTools, ToolOption, ToolOptions } from './tool_options.ts';

const descriptionCharactersMax = 2_000;

/** @param place of the option in reports */
export function compileToolOptions(
  declared: CollectionTools | false | undefined,
  type: ResourceType,
  place: string,
  report: Report,
): ToolOptions {
  if (declared === false) return false;
  const { actions = {}, ...others } = declared ?? {};
  const given = [
    ...Object.entries(others),
    ...Object.entries(actions).map(([name, option]) => [`actions.${name}`, option] as const),
  ];
  const known = type.parent === null ? ['list', 'get', 'create', 'update', 'delete'] : ['list', 'create'];
  known.push(...type.actions.map(({ name }) => `actions.${name}`));
  const options = new Map<string, ToolOption>();
  for (const [name, option] of given) {
    if (!known.includes(name)) report(`${place}.${name}`, `it must be one of ${known.join(', ')}`);
    else if (isOption(option)) options.set(name, option);
    else {
      report(
        `${place}.${name}`,
        `it must be false, or an object with a name and a description of at most ${descriptionCharactersMax} characters, both optional`,
      );
    }
  }
  return options;
}

function isOption(value: unknown): value is ToolOption {
  if (value === false) return true;
  if (typeof value !== 'object' || value === null) return false;
  const { name, description, ...others } = value as Record<string, unknown>;
  const isText = (text: unknown, max: number) =>
    text === undefined || (typeof text === 'string' && text !== '' && text.length <= max);
  return (
    isText(name, 128) && isText(description, descriptionCharactersMax) && Object.keys(others).length === 0
  );
}
