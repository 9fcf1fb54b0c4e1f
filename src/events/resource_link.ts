/**
 * Links from an event to the resource that it is about. A kind declares a template, such as
 * `/articles/{/article/id}`: text with JSON pointers into the body (RFC 6901) in braces.
 */

import { textAt } from './json_text.ts';

/** The parts of a template: texts, and between them the names that each pointer steps through. */
interface Template {
  texts: readonly string[];
  pointers: readonly (readonly string[])[];
}

const placeholder = /\{([^{}]*)\}/g;
const templateLengthMax = 1_024;
const templates = new Map<string, Template>();

function parse(template: string): Template {
  let parsed = templates.get(template);
  if (parsed === undefined) {
    const parts = template.split(placeholder);
    parsed = {
      texts: parts.filter((_part, index) => index % 2 === 0),
      pointers: parts.filter((_part, index) => index % 2 === 1).map(stepsOf),
    };
    // Templates come from the platform's kinds, so there are few.
    templates.set(template, parsed);
  }
  return parsed;
}

function stepsOf(pointer: string): string[] {
  const steps = pointer.split('/').slice(1);
  return steps.map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/**
 * @param body the body of the event as JSON
 * @returns an absolute URL; null if the body lacks a value, or has one that is no single path segment
 */
export function resourceLink(template: string, body: string, baseUrl: string): string | null {
  const { texts, pointers } = parse(template);
  let link = texts[0] as string;
  for (const [index, pointer] of pointers.entries()) {
    const text = textAt(body, pointer);
    const segment = text === undefined || /^[[{]/.test(text) ? null : segmentOf(JSON.parse(text));
    if (segment === null) return null;
    link += segment + texts[index + 1];
  }
  return link.startsWith('/') ? baseUrl + link : link;
}

/** A value as one path segment. Null for `.` and `..`, which URL parsers resolve, so that no body leads to another path. */
function segmentOf(value: unknown): string | null {
  // Larger integers have lost digits when the body was parsed.
  if (typeof value === 'number') return Number.isSafeInteger(value) ? String(value) : null;
  if (typeof value !== 'string' || /^\.{0,2}$/.test(value) || !value.isWellFormed()) return null;
  return encodeURIComponent(value);
}

/** @returns why the template cannot be used; undefined if it can */
export function templateError(template: unknown, example: unknown): string | undefined {
  if (typeof template !== 'string' || template.length > templateLengthMax) {
    return `must be a string of at most ${templateLengthMax} characters`;
  }
  const link = resourceLink(template, JSON.stringify(example ?? null), 'https://base.invalid');
  if (link === null) return 'has a pointer to no string or integer of the example';
  const url = URL.parse(link);
  const isPath = /^\/[^/]/.test(template);
  // Pointers are allowed in the path and query only, so that no body decides about the host.
  const isUrl = url?.protocol === 'https:' && /^https:\/\/[^{}/?#]+\//.test(template);
  if (/[{}]/.test(link) || url === null || !(isPath || isUrl)) {
    return 'must be a path that begins with / or an https URL, with JSON pointers of the body in braces';
  }
  return undefined;
}
