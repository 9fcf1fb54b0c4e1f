/** Registers the accounts API, for applications that have their own users. */

import { registerAccounts } from './account_routes.ts';
import { registerAccountGrants } from './grant_routes.ts';
import { registerAccountLinks } from './link_routes.ts';
import { registerLoginRequests } from './login_routes.ts';
import type { AccountApiOptions } from './machine_guard.ts';

export function registerAccountApi(options: AccountApiOptions): void {
  registerAccounts(options);
  registerAccountGrants(options);
  registerAccountLinks(options);
  registerLoginRequests(options);
}
