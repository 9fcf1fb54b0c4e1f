/** Registers the events API: publishing by machine clients, and what subscribers read. */

import type { EventKind } from '../../events/kind.ts';
import type { ReferencePart } from '../../http/operation.ts';
import { eventRoutes, registerEventRoutes } from './event_routes.ts';
import { type EventRoutesOptions, tag } from './options.ts';
import { publishRoutes, registerPublishing } from './publish.ts';

/** @param kinds the platform's kinds */
export function registerEvents(options: EventRoutesOptions, kinds: readonly EventKind[]): void {
  registerPublishing(options, kinds);
  registerEventRoutes(options);
}

/** @param kinds the platform's kinds */
export function eventsPart(kinds: readonly EventKind[]): ReferencePart {
  return {
    operations: [publishRoutes(kinds), eventRoutes].flatMap((routes) => Object.values(routes)),
    tags: [{ name: tag, description: 'The catalogue of event kinds, and publishing by machine clients.' }],
  };
}
