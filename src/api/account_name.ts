/** How request bodies name an account: by its id, or by the application's own user id. */

import Type from 'typebox';
import { mustNameAccount } from '../accounts/account_name.ts';
import { Id, named, strict, worded } from '../http/schema.ts';
import { GivenExternalId } from './accounts/schemas.ts';

export const AccountNameSchema = named(
  'AccountName',
  worded(
    mustNameAccount.replace(/^must be /, ''),
    Type.Union([Id(), Type.Object({ external_id: GivenExternalId() }, strict)]),
  ),
);
