/** POSTs that came with an `Idempotency-Key`: done once, answered again. The responses may hold secrets: they are sealed. */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Sealer } from '../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../database/database.ts';
import { type Answer, sendAnswer } from './answer.ts';
import { answerOnce, readIdempotencyKey } from './idempotency.ts';

/**
 * @param owner account and client of the token: another pair has other keys
 * @param work runs in the transaction that also keeps the response, where there is a key
 */
export async function sendOnce(
  { db, sealer }: { db: Database; sealer: Sealer },
  request: FastifyRequest,
  reply: FastifyReply,
  owner: string,
  work: (db: Database | Transaction) => Promise<Answer>,
): Promise<FastifyReply> {
  const keyed = readIdempotencyKey(request.headers['idempotency-key'], owner, request);
  const answer =
    keyed === undefined
      ? await work(db)
      : await inTransaction(db, (tx) => answerOnce(tx, keyed, work, sealer));
  return sendAnswer(reply, answer);
}
