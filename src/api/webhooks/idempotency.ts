/** Idempotent POSTs of the webhooks API. Each key belongs to the owner that the token acts for. */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { sendIdempotent } from '../../http/idempotent_post.ts';
import type { JsonResponse } from '../../http/json_response.ts';
import type { Owner } from '../../webhooks/subscriptions/subscription.ts';

/** @param work runs in the transaction that stores the response, if there is a key */
export function sendIdempotentForOwner(
  options: { db: Database; sealer: Sealer },
  request: FastifyRequest,
  reply: FastifyReply,
  owner: Owner,
  work: (db: Database | Transaction) => Promise<JsonResponse>,
): Promise<FastifyReply> {
  const account = owner.kind === 'client' ? '-' : owner.accountId;
  const client = owner.kind === 'user' ? '-' : owner.clientId;
  return sendIdempotent(options, request, reply, `${account} ${client}`, work);
}
