/** Schemas of accounts in requests and responses, and how their values are read. */

import Type, { type Static } from 'typebox';
import { normalizeEmail } from '../../accounts/account.ts';
import {
  type AccountMembers,
  type ExternalAccount,
  externalIdCharactersMax,
  isExternalId,
  mustBeExternalId,
} from '../../accounts/external_account.ts';
import { links } from '../../http/describe.ts';
import { Problem } from '../../http/problem.ts';
import { Id, Nullable, named, strict, Time, worded } from '../../http/schema.ts';

/** Maximum accounts per request. */
export const accountsMax = 1_000;
/** Maximum length of an address (RFC 5321 section 4.5.3.1.3) and of a name, in characters. */
const emailCharactersMax = 254;
const nameCharactersMax = 200;

/** Excludes control characters: C0, DEL and C1. */
export const ExternalId = () =>
  Type.String({
    minLength: 1,
    maxLength: externalIdCharactersMax,
    pattern: '^[^\\u0000-\\u001f\\u007f-\\u009f]+$',
  });

/** In request bodies. */
export const GivenExternalId = () =>
  worded(
    mustBeExternalId.replace(/^must be /, ''),
    Type.Union([
      ExternalId(),
      Type.Integer({
        minimum: Number.MIN_SAFE_INTEGER,
        maximum: Number.MAX_SAFE_INTEGER,
        description: 'Kept as its decimal text.',
      }),
    ]),
  );

/** What a login request may also state. */
export const profileMembers = {
  email: Type.Optional(
    worded(
      `an e-mail address of up to ${emailCharactersMax} characters, or null`,
      Nullable(
        Type.String({
          minLength: 3,
          maxLength: emailCharactersMax,
          pattern: '^\\s*[^\\s@\\u0000-\\u001f\\u007f-\\u009f]+@[^\\s@\\u0000-\\u001f\\u007f-\\u009f]+\\s*$',
        }),
      ),
    ),
  ),
  email_verified: Type.Optional(Nullable(Type.Boolean())),
  name: Type.Optional(
    worded(
      `a string of 1 to ${nameCharactersMax} visible characters, or null`,
      Nullable(
        Type.String({
          minLength: 1,
          maxLength: nameCharactersMax,
          pattern:
            '^[^\\u0000-\\u001f\\u007f-\\u009f]*[^\\s\\u0000-\\u001f\\u007f-\\u009f][^\\u0000-\\u001f\\u007f-\\u009f]*$',
        }),
      ),
    ),
  ),
};

const members = { ...profileMembers, disabled: Type.Optional(Type.Boolean()) };

export const AccountChange = named('AccountChange', Type.Object(members, strict));
const ExternalAccountBody = named(
  'ExternalAccount',
  Type.Object({ external_id: GivenExternalId(), ...members }, strict),
);
export const ExternalAccounts = named(
  'ExternalAccounts',
  Type.Union([ExternalAccountBody, Type.Array(ExternalAccountBody, { minItems: 1, maxItems: accountsMax })]),
);

export const Account = named(
  'Account',
  Type.Object(
    {
      id: Id(),
      external_id: Nullable(Type.String()),
      email: Nullable(Type.String()),
      email_verified: Nullable(Type.Boolean()),
      name: Nullable(Type.String()),
      disabled: Type.Boolean(),
      created_at: Time(),
      updated_at: Time(),
      _links: links,
    },
    strict,
  ),
);

/** Reads the members that a body has. The others stay unchanged. */
export function readMembers(given: Static<typeof AccountChange>): AccountMembers {
  const { email, email_verified: isEmailVerified, name, disabled: isDisabled } = given;
  return {
    ...(email === undefined ? {} : { email: email && (normalizeEmail(email) as string) }),
    ...(isEmailVerified === undefined ? {} : { isEmailVerified }),
    ...(name === undefined ? {} : { name: name?.trim() ?? '' }),
    ...(isDisabled === undefined ? {} : { isDisabled }),
  };
}

export function readExternalAccount(given: Static<typeof ExternalAccountBody>): ExternalAccount {
  // An integer is kept as its decimal text.
  return { externalId: String(given.external_id), ...readMembers(given) };
}

/** Reads an external id from a URL. @throws Problem 400 */
export function readExternalId(value: string, place: string): string {
  if (isExternalId(value)) return value;
  throw new Problem(
    400,
    `${place} must have 1 to ${externalIdCharactersMax} characters, without control characters.`,
    { code: 'invalid-external-id' },
  );
}
