/** The accounts API: what an application that has its own users tells of them and shows them. */

import { registerAccounts } from './account_routes.ts';
import { registerAccountGrants } from './grant_routes.ts';
import { registerAccountLinks } from './link_routes.ts';
import { registerLoginRequests } from './login_routes.ts';
import type { AccountApiOptions } from './machine.ts';

export function registerAccountApi(options: AccountApiOptions): void {
  registerAccounts(options);
  registerAccountGrants(options);
  registerAccountLinks(options);
  registerLoginRequests(options);
}
