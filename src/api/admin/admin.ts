/** Registers the administration API, `/admin`, for administrators and machine clients of the operator. */

import type { ReferencePart } from '../../http/operation.ts';
import { accountRoutes, registerAdminAccounts } from './account_routes.ts';
import { appRoutes, registerAdminApps } from './app_routes.ts';
import { auditRoutes, registerAdminAudit } from './audit_routes.ts';
import { connectionRoutes, registerAdminConnections } from './connection_routes.ts';
import { doctorRoutes, registerAdminDoctor } from './doctor_routes.ts';
import { grantRoutes, registerAdminGrants } from './grant_routes.ts';
import type { AdminOptions } from './options.ts';
import { parkedEventRoutes, registerAdminParkedEvents } from './parked_event_routes.ts';
import { registerAdminRejectedEvents, rejectedEventRoutes } from './rejected_event_routes.ts';
import { registerAdminServer, serverRoutes } from './server_routes.ts';
import { registerAdminSubscriptions, subscriptionRoutes } from './subscription_routes.ts';

export function registerAdministration(options: AdminOptions): void {
  registerAdminAccounts(options);
  registerAdminApps(options);
  registerAdminGrants(options);
  registerAdminSubscriptions(options);
  registerAdminRejectedEvents(options);
  registerAdminParkedEvents(options);
  registerAdminAudit(options);
  registerAdminConnections(options);
  registerAdminServer(options);
  registerAdminDoctor(options);
}

export const adminPart: ReferencePart = {
  operations: [
    accountRoutes,
    appRoutes,
    grantRoutes,
    subscriptionRoutes,
    rejectedEventRoutes,
    parkedEventRoutes,
    auditRoutes,
    connectionRoutes,
    serverRoutes,
    doctorRoutes,
  ].flatMap((routes) => Object.values(routes)),
  tags: [{ name: 'administration', description: 'Administration of the server.' }],
};
