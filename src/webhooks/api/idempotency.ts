/** Idempotency keys of the webhooks' routes: each belongs to the owner that the token speaks for. */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { Answer } from '../../http/answer.ts';
import { sendOnce as sendOnceFor } from '../../http/once.ts';
import type { Owner } from '../subscriptions/subscription.ts';

/** @param work in the transaction that also keeps the answer, where there is a key */
export function sendOnce(
  options: { db: Database; sealer: Sealer },
  request: FastifyRequest,
  reply: FastifyReply,
  owner: Owner,
  work: (db: Database | Transaction) => Promise<Answer>,
): Promise<FastifyReply> {
  const account = owner.kind === 'client' ? '-' : owner.accountId;
  const client = owner.kind === 'user' ? '-' : owner.clientId;
  return sendOnceFor(options, request, reply, `${account} ${client}`, work);
}
