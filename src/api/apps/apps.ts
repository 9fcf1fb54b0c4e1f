/** Registers `/apps`, `/app-invitations` and `/notice-settings`, for the signed-in app developer. */

import type { ReferencePart } from '../../http/operation.ts';
import type { AppRoutesOptions } from './app_access.ts';
import { appRoutes, registerAppRoutes } from './app_routes.ts';
import { appConnectionRoutes, registerAppConnections } from './connection_routes.ts';
import { invitationRoutes, registerInvitationRoutes } from './invitation_routes.ts';
import { logoRoutes, registerLogoRoutes } from './logo_routes.ts';
import { memberRoutes, registerMemberRoutes } from './member_routes.ts';
import { noticeRoutes, registerNoticeRoutes } from './notice_routes.ts';
import { tag } from './schemas.ts';
import { registerSecretRoutes, secretRoutes } from './secret_routes.ts';

export function registerApps(options: AppRoutesOptions): void {
  registerAppRoutes(options);
  registerLogoRoutes(options);
  registerSecretRoutes(options);
  registerMemberRoutes(options);
  registerInvitationRoutes(options);
  registerNoticeRoutes(options);
  registerAppConnections(options);
}

export const appsPart: ReferencePart = {
  operations: [
    appRoutes,
    logoRoutes,
    secretRoutes,
    memberRoutes,
    invitationRoutes,
    noticeRoutes,
    appConnectionRoutes,
  ].flatMap((routes) => Object.values(routes)),
  tags: [{ name: tag, description: 'The apps of the signed-in app developer and their members.' }],
};
