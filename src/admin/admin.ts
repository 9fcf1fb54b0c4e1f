/** Registers the administration API, `/admin`, for administrators and machine clients of the operator. */

import { registerAdminAccounts } from './account_routes.ts';
import { registerAdminApps } from './app_routes.ts';
import { registerAdminAudit } from './audit_routes.ts';
import { registerAdminGrants } from './grant_routes.ts';
import type { AdminOptions } from './options.ts';
import { registerAdminParkedEvents } from './parked_event_routes.ts';
import { registerAdminRejectedEvents } from './rejected_event_routes.ts';
import { registerAdminServer } from './server_routes.ts';
import { registerAdminSubscriptions } from './subscription_routes.ts';

export function registerAdministration(options: AdminOptions): void {
  registerAdminAccounts(options);
  registerAdminApps(options);
  registerAdminGrants(options);
  registerAdminSubscriptions(options);
  registerAdminRejectedEvents(options);
  registerAdminParkedEvents(options);
  registerAdminAudit(options);
  registerAdminServer(options);
}
