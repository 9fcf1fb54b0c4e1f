/** The parts of the OpenAPI document. The server publishes it, and the console's types are generated from it. */

import { accountsPart } from './api/accounts/accounts.ts';
import { adminPart } from './api/admin/admin.ts';
import { appsPart } from './api/apps/apps.ts';
import { eventsPart } from './api/events/events.ts';
import { webhooksPart } from './api/webhooks/webhooks.ts';
import { describeCollections } from './collections/operations.ts';
import type { ReferencePart } from './http/operation.ts';
import type { Platform } from './platform.ts';

export function referenceParts({ collections, eventKinds }: Platform): ReferencePart[] {
  return [
    describeCollections(collections),
    eventsPart(eventKinds),
    webhooksPart(eventKinds),
    appsPart,
    accountsPart,
    adminPart,
  ];
}
