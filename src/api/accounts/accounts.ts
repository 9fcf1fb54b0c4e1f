/** The accounts API, for applications that have their own users. For machine clients of the operator. */

import type { ReferencePart } from '../../http/operation.ts';
import { accountRoutes, registerAccounts } from './account_routes.ts';
import { grantRoutes, registerAccountGrants } from './grant_routes.ts';
import { linkRoutes, registerAccountLinks } from './link_routes.ts';
import { loginRoutes, registerLoginRequests } from './login_routes.ts';
import { type AccountApiOptions, tag } from './options.ts';

export function registerAccountApi(options: AccountApiOptions): void {
  registerAccounts(options);
  registerAccountGrants(options);
  registerAccountLinks(options);
  registerLoginRequests(options);
}

export const accountsPart: ReferencePart = {
  operations: [accountRoutes, grantRoutes, linkRoutes, loginRoutes].flatMap((routes) =>
    Object.values(routes),
  ),
  tags: [
    {
      name: tag,
      description:
        'Accounts of an application that has its own users. For machine clients of the operator only.',
    },
  ],
};
