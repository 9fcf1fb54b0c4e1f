/** The parts of the OpenAPI document. The server publishes it, and the console's types are generated from it. */

import { describeAccountApi } from './account_api/operations.ts';
import { describeAdministration } from './admin/operations.ts';
import { describeApps } from './apps/api/operations.ts';
import { describeCollections } from './collections/operations.ts';
import type { ReferencePart } from './http/operation.ts';
import type { Platform } from './platform.ts';
import { describeWebhooks } from './webhooks/api/reference/describe.ts';

export function referenceParts(platform: Platform): ReferencePart[] {
  return [
    describeCollections(platform.collections),
    describeWebhooks(platform.eventKinds),
    describeApps(),
    describeAccountApi(),
    describeAdministration(),
  ];
}
