/** All tools of the platform: those of the collections, then those that the operator defined. */

import type { ResourceOperation } from '../../collections/resource_operations.ts';
import { type ResourceType, withChildren } from '../../collections/resource_type.ts';
import type { McpSettings } from '../settings.ts';
import { bindTool } from './collection_call.ts';
import { type CollectionTool, describeTools, ifMatchArgument, keyArgument } from './collection_tools.ts';
import { nameProblem, type ToolDefinition } from './define_tool.ts';
import { managementToolNames } from './management_tools.ts';
import type { Tool, ToolServices } from './tool.ts';

type Report = (place: string, reason: string) => void;

/** Reports names that are not valid or not unique, and fields whose names are arguments of every tool. */
export function checkTools(
  collections: readonly ResourceType[],
  defined: readonly ToolDefinition[],
  { management }: Pick<McpSettings, 'management'>,
  report: Report,
): void {
  const names = new Set<string>(management ? managementToolNames : []);
  const check = (name: string, place: string, hint: string) => {
    const problem = nameProblem(name);
    if (problem !== undefined) report(place, `the tool ${name} ${problem}${hint}`);
    else if (names.has(name)) report(place, `the tool ${name} exists twice${hint}`);
    names.add(name);
  };
  for (const collection of collections) {
    const place = `collections.${collection.name}`;
    for (const tool of describeTools(collection)) {
      check(tool.name, place, '; name it in the option mcp, or hide it there');
    }
    for (const type of withChildren(collection)) checkFields(type, place, report);
  }
  for (const { name } of defined) check(name, `tools.${name}`, '');
}

function checkFields(type: ResourceType, place: string, report: Report): void {
  if (type.tools === false) return;
  for (const { name } of type.fields) {
    if (name !== ifMatchArgument && name !== keyArgument) continue;
    report(`${place}.fields.${name}`, 'is an argument of every tool; rename the field, or set mcp to false');
  }
}

/** @param operations of all collections */
export function collectTools(
  operations: readonly ResourceOperation[],
  defined: readonly ToolDefinition[],
  services: ToolServices,
): ReadonlyMap<string, Tool> {
  const collections = new Set(operations.map(({ type }) => type).filter(({ parent }) => parent === null));
  const derived = [...collections]
    .flatMap(describeTools)
    .map((tool) => bindTool(tool, find(operations, tool)));
  const own = defined.map(({ object: _object, bind, ...tool }) => ({
    ...tool,
    fillsDefaults: true,
    run: bind(services),
  }));
  return new Map([...derived, ...own].map((tool) => [tool.name, tool]));
}

function find(operations: readonly ResourceOperation[], tool: CollectionTool): ResourceOperation {
  const found = operations.find(
    ({ type, kind, action }) => type === tool.type && kind === tool.kind && action === tool.action,
  );
  if (found === undefined) throw new Error(`no operation for the tool ${tool.name}`);
  return found;
}

/** The scopes that tools need, in the order of the tools. */
export function scopesOf(tools: ReadonlyMap<string, Tool>): string[] {
  return [...new Set([...tools.values()].map(({ scope }) => scope))];
}
