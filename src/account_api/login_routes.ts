/**
 * `/login-requests/<id>`: the application accepts or rejects a sign-in that was handed over to it, and redirects the
 * browser that started it to `redirect_to`.
 */

import type { FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import { putExternalAccounts } from '../accounts/external_account.ts';
import {
  findLoginRequest,
  type LoginRequest,
  type LoginResult,
  recordLoginResult,
} from '../accounts/login_request.ts';
import { type Actor, actAs } from '../apps/actor.ts';
import type { Database, Transaction } from '../database/database.ts';
import { loginScope } from '../grants/scopes.ts';
import { Problem } from '../http/problem.ts';
import { requireControl } from './account_routes.ts';
import { describeScopes } from './grant_routes.ts';
import { readAcceptance, readRejection } from './login_results.ts';
import { type AccountApiOptions, machineGuard } from './machine_guard.ts';

interface IdRoute {
  Params: { id: string };
}

export function registerLoginRequests(options: AccountApiOptions): void {
  const { api, db, baseUrl, scopes, signsInAdministrators } = options;
  const machine = machineGuard(options, loginScope);

  api.get<IdRoute>('/login-requests/:id', async (request, reply) => {
    await machine(request);
    const { id } = request.params;
    const found = await requireRequest(db, id);
    const { parameters, clientId, expiresAt } = found;
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

  api.post<IdRoute>('/login-requests/:id/accept', async (request, reply) => {
    const actor = await machine(request);
    const found = await requireRequest(db, request.params.id);
    const { account, ...login } = readAcceptance(request.body, found);
    let accountId: string | undefined;
    const body = await complete(request, found, actor, async (tx) => {
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
    const named = { id: accountId, external_id: account.externalId };
    return reply.send({ ...body, account: named });
  });

  api.post<IdRoute>('/login-requests/:id/reject', async (request, reply) => {
    const actor = await machine(request);
    const found = await requireRequest(db, request.params.id);
    const rejection = readRejection(request.body);
    const body = await complete(request, found, actor, async () => ({ accountId: null, ...rejection }));
    return reply.send(body);
  });

  async function complete(
    request: FastifyRequest,
    { interactionUid }: LoginRequest,
    actor: Actor,
    work: (tx: Transaction) => Promise<LoginResult>,
  ): Promise<{ redirect_to: string }> {
    const { id } = request.params as IdRoute['Params'];
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
