/** The catalogue: every event kind of this deployment, declared or built in, with its compiled schema. */

import { Ajv, type ValidateFunction } from 'ajv';
import addFormats from 'ajv-formats';
import { Type } from 'typebox';
import type { ValidationError } from '../http/problem.ts';
import { disabledName, failingName, pingName } from './built_in_names.ts';
import { defineEventKind, type EventKind } from './kind.ts';
import { patternsOf } from './kind_pattern.ts';
import { replaceLengthKeywords } from './string_length.ts';
import { type DescribedVersion, describeVersions, newestVersion } from './versions.ts';

/** Sent by `POST /subscriptions/<id>/test`. */
const pingKind = defineEventKind({
  name: pingName,
  description: 'Sent on request, to test a subscription.',
  object: null,
  schema: Type.Object({ subscription: Type.String(), at: Type.String() }),
  example: { subscription: '01982f3e-8d2a-7c3b-9f4d-2f6b8f0f5a11', at: '2026-01-01T00:00:00.000Z' },
  resource: '/subscriptions/{/subscription}',
});

/** Sent to the owner's other subscriptions when a subscription was disabled. */
const disabledKind = defineEventKind({
  name: disabledName,
  description: 'A subscription was disabled because its deliveries failed for too long or its URL is gone.',
  object: null,
  schema: Type.Object({
    subscription: Type.Object({ id: Type.String(), url: Type.String() }),
    reason: Type.String(),
  }),
  example: {
    subscription: { id: '01982f3e-8d2a-7c3b-9f4d-2f6b8f0f5a11', url: 'https://example.com/hooks' },
    reason: 'failing',
  },
  resource: '/subscriptions/{/subscription/id}',
});

/** Sent to the owner's other subscriptions before a subscription is disabled: halfway, and one day before. */
const failingKind = defineEventKind({
  name: failingName,
  description: 'A subscription has failed for a long time and will be disabled unless a delivery succeeds.',
  object: null,
  schema: Type.Object({
    subscription: Type.Object({ id: Type.String(), url: Type.String() }),
    failing_since: Type.String(),
    disables_at: Type.String(),
  }),
  example: {
    subscription: { id: '01982f3e-8d2a-7c3b-9f4d-2f6b8f0f5a11', url: 'https://example.com/hooks' },
    failing_since: '2026-01-01T00:00:00.000Z',
    disables_at: '2026-01-06T00:00:00.000Z',
  },
  resource: '/subscriptions/{/subscription/id}',
});

const builtInKinds: readonly EventKind[] = [pingKind, disabledKind, failingKind];

export interface CatalogueEntry extends Omit<EventKind, 'versions'> {
  /** Newest first; none if the kind has no versions. */
  versions: readonly DescribedVersion[];
  /** The patterns of a subscription that match the kind. */
  patterns: readonly string[];
  /** Whether only the server publishes it. */
  isBuiltIn: boolean;
}

export interface Catalogue {
  /** The newest version of any kind, which new subscriptions get; null if no kind has versions. */
  readonly newestVersion: string | null;
  readonly kinds: ReadonlyMap<string, CatalogueEntry>;
  /** Validates a body against its kind's schema. @param pointer JSON pointer of the body @returns the errors; empty if valid */
  errorsOf(kind: string, body: unknown, pointer: string): ValidationError[];
}

/**
 * @param declared the platform's kinds
 * @throws Error if two kinds have the same name
 */
export function createCatalogue(declared: readonly EventKind[]): Catalogue {
  // The platform's check has validated the schemas.
  const ajv = new Ajv({ allErrors: false, strict: false, validateSchema: false });
  addFormats.default(ajv);
  replaceLengthKeywords(ajv);
  const kinds = new Map<string, CatalogueEntry>();
  // Compiled when first needed.
  const validators = new Map<string, ValidateFunction>();
  const validatorOf = (name: string) => {
    const validate = validators.get(name) ?? ajv.compile((kinds.get(name) as CatalogueEntry).schema);
    validators.set(name, validate);
    return validate;
  };
  for (const kind of [...builtInKinds, ...declared]) {
    if (kinds.has(kind.name)) throw new Error(`the event kind ${kind.name} is declared twice`);
    const isBuiltIn = builtInKinds.includes(kind);
    kinds.set(kind.name, {
      ...kind,
      versions: describeVersions(kind),
      patterns: patternsOf(kind.name),
      isBuiltIn,
    });
  }
  return {
    newestVersion: newestVersion(declared),
    kinds,
    errorsOf(kind, body, pointer) {
      const validate = validatorOf(kind);
      if (validate(body)) return [];
      return (validate.errors ?? []).map((error) => ({
        pointer: pointer + error.instancePath,
        message: error.message ?? 'is not valid',
      }));
    },
  };
}
