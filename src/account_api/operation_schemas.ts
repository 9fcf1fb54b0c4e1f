/** The schemas of the accounts API, for the OpenAPI document. */

import Type, { type TSchema } from 'typebox';
import { externalIdCharactersMax } from '../accounts/external_account.ts';
import { Id, links, listOf, Nullable, reference, StringEnum, strict, Time } from '../http/describe.ts';
import { requestSchema } from '../http/request_schema.ts';
import { returnToCharactersMax } from './link_routes.ts';
import {
  acrCharactersMax,
  amrCharactersMax,
  amrMax,
  descriptionCharactersMax,
  loginErrors,
} from './login_results.ts';
import { accountsMax, emailCharactersMax, nameCharactersMax } from './members.ts';

/** Excludes control characters: C0, DEL and C1. */
export const ExternalId = () =>
  Type.String({
    minLength: 1,
    maxLength: externalIdCharactersMax,
    pattern: '^[^\\u0000-\\u001f\\u007f-\\u009f]+$',
  });

/** In request bodies. */
const GivenExternalId = () =>
  Type.Union([
    ExternalId(),
    Type.Integer({
      minimum: Number.MIN_SAFE_INTEGER,
      maximum: Number.MAX_SAFE_INTEGER,
      description: 'Kept as its decimal text.',
    }),
  ]);

const members = {
  email: Type.Optional(
    Nullable(
      Type.String({
        minLength: 3,
        maxLength: emailCharactersMax,
        pattern: '^[^\\s@\\u0000-\\u001f\\u007f-\\u009f]+@[^\\s@\\u0000-\\u001f\\u007f-\\u009f]+$',
      }),
    ),
  ),
  email_verified: Type.Optional(Nullable(Type.Boolean())),
  name: Type.Optional(
    Nullable(
      Type.String({
        minLength: 1,
        maxLength: nameCharactersMax,
        pattern:
          '^[^\\u0000-\\u001f\\u007f-\\u009f]*[^\\s\\u0000-\\u001f\\u007f-\\u009f][^\\u0000-\\u001f\\u007f-\\u009f]*$',
      }),
    ),
  ),
  disabled: Type.Optional(Type.Boolean()),
};

export const accountSchemas: Record<string, TSchema> = {
  Account: Type.Object(
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
  AccountList: listOf('Account'),
  AccountChange: requestSchema(Type.Object(members, strict)),
  ExternalAccount: requestSchema(Type.Object({ external_id: GivenExternalId(), ...members }, strict)),
  ExternalAccounts: Type.Union([
    reference('ExternalAccount'),
    Type.Array(reference('ExternalAccount'), { minItems: 1, maxItems: accountsMax }),
  ]),
  PutAccounts: Type.Object(
    {
      items: Type.Array(
        Type.Object({ id: Id(), external_id: Type.String(), is_new: Type.Boolean(), _links: links }, strict),
        { maxItems: accountsMax },
      ),
    },
    strict,
  ),
  AccountGrant: Type.Object(
    {
      id: Id(),
      account: Id(),
      client: Type.String(),
      client_name: Type.String(),
      client_uri: Nullable(Type.String()),
      first_party: Type.Boolean(),
      scopes: Type.Array(Type.String()),
      scope_descriptions: Type.Record(Type.String(), Type.String()),
      created_at: Time(),
      last_used_at: Nullable(Time()),
      _links: links,
    },
    strict,
  ),
  AccountGrantList: listOf('AccountGrant'),
  AccountName: requestSchema(
    Type.Union([Id(), Type.Object({ external_id: GivenExternalId() }, strict)]) as TSchema,
  ),
  AccountLinkCreate: requestSchema(
    Type.Object(
      {
        account: reference('AccountName'),
        return_to: Type.Optional(Nullable(Type.String({ format: 'uri', maxLength: returnToCharactersMax }))),
      },
      strict,
    ),
  ),
  LoginRequest: Type.Object(
    {
      id: Type.String(),
      client: Nullable(
        Type.Object(
          { client_id: Type.String(), client_name: Type.String(), client_uri: Nullable(Type.String()) },
          strict,
        ),
      ),
      scopes: Type.Array(Type.String()),
      scope_descriptions: Type.Record(Type.String(), Type.String()),
      login_hint: Nullable(Type.String()),
      prompt: Nullable(Type.String()),
      acr_values: Type.Array(Type.String()),
      max_age: Nullable(Type.Integer()),
      expires_at: Time(),
      _links: links,
    },
    strict,
  ),
  LoginAcceptance: requestSchema(
    Type.Object(
      {
        account: Type.Object(
          {
            external_id: GivenExternalId(),
            email: members.email,
            email_verified: members.email_verified,
            name: members.name,
          },
          strict,
        ),
        auth_time: Type.Optional(Type.Integer({ minimum: 0 })),
        amr: Type.Optional(
          Nullable(
            Type.Array(Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: amrCharactersMax }), {
              maxItems: amrMax,
            }),
          ),
        ),
        acr: Type.Optional(
          Nullable(Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: acrCharactersMax })),
        ),
      },
      strict,
    ),
  ),
  LoginRejection: requestSchema(
    Type.Object(
      {
        error: Type.Optional(StringEnum(...loginErrors)),
        error_description: Type.Optional(
          Nullable(
            Type.String({
              pattern: '^[ !#-\\[\\]-~]+$',
              minLength: 1,
              maxLength: descriptionCharactersMax,
            }),
          ),
        ),
      },
      strict,
    ),
  ),
  LoginAccepted: Type.Object(
    {
      redirect_to: Type.String({ format: 'uri' }),
      account: Type.Object({ id: Id(), external_id: Type.String() }, strict),
    },
    strict,
  ),
  LoginAnswered: Type.Object({ redirect_to: Type.String({ format: 'uri' }) }, strict),
  AccountLink: Type.Object({ url: Type.String({ format: 'uri' }), expires_at: Time() }, strict),
};
