/** POSTs that came with an `Idempotency-Key`: done once, answered again. The answers may hold secrets: they are sealed. */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { type Answer, sendAnswer } from '../../http/answer.ts';
import { answerOnce, readIdempotencyKey } from '../../http/idempotency.ts';
import type { Owner } from '../subscriptions/subscription.ts';

/** @param work in the transaction that also keeps the answer, where there is a key */
export async function sendOnce(
  { db, sealer }: { db: Database; sealer: Sealer },
  request: FastifyRequest,
  reply: FastifyReply,
  owner: Owner,
  work: (db: Database | Transaction) => Promise<Answer>,
): Promise<FastifyReply> {
  const account = owner.kind === 'client' ? '-' : owner.accountId;
  const client = owner.kind === 'user' ? '-' : owner.clientId;
  const keyed = readIdempotencyKey(request.headers['idempotency-key'], `${account} ${client}`, request);
  const answer =
    keyed === undefined
      ? await work(db)
      : await db.transaction().execute((tx) => answerOnce(tx, keyed, work, sealer));
  return sendAnswer(reply, answer);
}
