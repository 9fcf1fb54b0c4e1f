/**
 * `/login-requests/<id>`: the application accepts or rejects a sign-in that was handed over to it, and redirects the
 * browser that started it to `redirect_to`.
 */

import { sql } from 'kysely';
import Type from 'typebox';
import { putExternalAccounts } from '../../accounts/external_account.ts';
import {
  findLoginRequest,
  type LoginRequest,
  type LoginResult,
  recordLoginResult,
} from '../../accounts/login_request.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { type Actor, actAs } from '../../grants/actor.ts';
import { loginScope } from '../../grants/scopes.ts';
import { jsonBody, links, ok, pathParameter } from '../../http/describe.ts';
import { ErrorList, Problem } from '../../http/problem.ts';
import { Id, Nullable, named, strict, Time } from '../../http/schema.ts';
import { machine } from '../admission.ts';
import { route, serve } from '../route.ts';
import { requireControl } from './account_routes.ts';
import { describeScopes } from './grant_routes.ts';
import { checkAuthTime, LoginAcceptance, LoginRejection, readAcceptance } from './login_results.ts';
import { type AccountApiOptions, tag } from './options.ts';

const LoginRequestShown = named(
  'LoginRequest',
  Type.Object(
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
);

const redirect = { redirect_to: Type.String({ format: 'uri' }) };
const LoginAccepted = named(
  'LoginAccepted',
  Type.Object(
    { ...redirect, account: Type.Object({ id: Id(), external_id: Type.String() }, strict) },
    strict,
  ),
);
const LoginAnswered = named('LoginAnswered', Type.Object(redirect, strict));

const common = {
  tag,
  admission: machine(loginScope),
  parameters: [
    pathParameter('id', 'The id of the login request.', Type.String({ pattern: '^[A-Za-z0-9_-]{43}$' })),
  ],
  problems: [409],
};

export const loginRoutes = {
  read: route({
    ...common,
    id: 'read_login_request',
    method: 'get',
    path: '/login-requests/{id}',
    summary: 'Read a login request',
    description:
      'The id is the parameter `login_request` of the login page. `client` is null if the user opened the account page.',
    responses: ok('The login request.', LoginRequestShown),
  }),
  accept: route({
    ...common,
    id: 'accept_login_request',
    method: 'post',
    path: '/login-requests/{id}/accept',
    summary: 'Accept a login request: state who the user is',
    description:
      'Redirect the browser of that user to `redirect_to`. The URL works once, within ten minutes of the start, in the browser that started the sign-in. The account is created or changed as by `PUT /accounts/external/{external_id}`. Administrators are refused (409 `administrator`), unless the operator set `accounts.login.administrators`. `auth_time` is required if the request has `prompt=login` or `max_age`, and must satisfy them. Without it, id_tokens do not contain `auth_time`, and a later request with `max_age` requires a new sign-in.',
    body: jsonBody(LoginAcceptance, {
      account: { external_id: 'user-4711', email: 'ann@example.com', name: 'Ann' },
      auth_time: 1_760_000_000,
      amr: ['pwd'],
    }),
    responses: ok('The URL to redirect the browser to, and the account.', LoginAccepted),
  }),
  reject: route({
    ...common,
    id: 'reject_login_request',
    method: 'post',
    path: '/login-requests/{id}/reject',
    summary: 'Reject a login request: the app gets the error',
    body: jsonBody(
      LoginRejection,
      { error: 'access_denied', error_description: 'The user cancelled' },
      false,
    ),
    responses: ok('The URL to redirect the browser to.', LoginAnswered),
  }),
};

export function registerLoginRequests(options: AccountApiOptions): void {
  const { db, baseUrl, scopes, signsInAdministrators } = options;

  serve(options, loginRoutes.read, async ({ reply, params: { id } }) => {
    const { parameters, clientId, expiresAt } = await requireRequest(db, id);
    const self = `/login-requests/${id}`;
    return reply.header('cache-control', 'no-store').send({
      id,
      client: clientId === null ? null : await describeClient(db, clientId),
      scopes: parameters.scopes,
      scope_descriptions: describeScopes(parameters.scopes, scopes),
      login_hint: parameters.loginHint,
      prompt: parameters.prompt,
      acr_values: parameters.acrValues,
      max_age: parameters.maxAge,
      expires_at: expiresAt.toISOString(),
      _links: {
        self: { href: self },
        accept: { href: `${self}/accept`, method: 'POST' },
        reject: { href: `${self}/reject`, method: 'POST' },
      },
    });
  });

  serve(options, loginRoutes.accept, async ({ caller, params: { id }, body }) => {
    const found = await requireRequest(db, id);
    const errors = new ErrorList();
    checkAuthTime(body.auth_time, found, errors);
    errors.raise();
    const { account, ...login } = readAcceptance(body);
    let accountId: string | undefined;
    const redirect = await complete(id, found, caller, async (tx) => {
      const known = await findExternal(tx, account.externalId);
      if (known?.is_admin === true && !signsInAdministrators) requireControl(known);
      // The address of an administrator is not the application's to change.
      const { externalId, name } = account;
      const given =
        known?.is_admin === true ? { externalId, ...(name === undefined ? {} : { name }) } : account;
      const changed = await putExternalAccounts(tx, [given]);
      accountId = changed?.accounts[0]?.id;
      if (accountId === undefined || !(await isActive(tx, accountId))) {
        throw new Problem(409, 'The account is disabled.', { code: 'account-disabled' });
      }
      return { accountId, ...login };
    });
    return { ...redirect, account: { id: accountId, external_id: account.externalId } };
  });

  serve(options, loginRoutes.reject, async ({ caller, params: { id }, body }) => {
    const { error = 'access_denied', error_description: description = null } = body;
    const found = await requireRequest(db, id);
    return complete(id, found, caller, async () => ({ accountId: null, error, description }));
  });

  async function complete(
    id: string,
    { interactionUid }: LoginRequest,
    actor: Actor,
    work: (tx: Transaction) => Promise<LoginResult>,
  ): Promise<{ redirect_to: string }> {
    return db.transaction().execute(async (tx) => {
      await actAs(tx, actor);
      const verifier = await recordLoginResult(tx, id, actor.clientId, await work(tx));
      if (verifier === undefined) throw alreadyAnswered();
      const path = interactionUid === null ? '/account/continue' : `/interaction/${interactionUid}/continue`;
      return { redirect_to: `${baseUrl}${path}?${new URLSearchParams({ login_verifier: verifier })}` };
    });
  }
}

/** @throws Problem 404 if the request is unknown or expired, 409 if it is already answered */
async function requireRequest(db: Database, id: string): Promise<LoginRequest> {
  const found = await findLoginRequest(db, id);
  if (found === undefined) {
    throw new Problem(404, 'Login request not found or expired. The user must start again.');
  }
  if (found.isAnswered) throw alreadyAnswered();
  return found;
}

function alreadyAnswered(): Problem {
  return new Problem(409, 'The login request has already been answered. The user must start again.', {
    code: 'login-request-answered',
  });
}

/** Locked, so that the account does not become an administrator's meanwhile. */
async function findExternal(tx: Transaction, externalId: string) {
  const { rows } = await sql<{ is_admin: boolean; external_id: string }>`
    select is_admin, external_id from accounts where external_id = ${externalId} for no key update`.execute(
    tx,
  );
  return rows[0];
}

async function isActive(tx: Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`select from accounts where id = ${id} and disabled_at is null`.execute(tx);
  return rows.length > 0;
}

async function describeClient(db: Database, id: string): Promise<Record<string, string | null>> {
  const { rows } = await sql<{ name: string; client_uri: string | null }>`
    select name, metadata ->> 'client_uri' as client_uri from clients where id = ${id}`.execute(db);
  return { client_id: id, client_name: rows[0]?.name ?? id, client_uri: rows[0]?.client_uri ?? null };
}
