/** Runs a POST at most once per `Idempotency-Key`. Stored responses are sealed, because they may contain secrets. */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Sealer } from '../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../database/database.ts';
import { readIdempotencyKey, runIdempotent } from './idempotency.ts';
import { type JsonResponse, sendResponse } from './json_response.ts';

/**
 * @param owner account and client of the token; each pair has its own keys
 * @param work runs in the transaction that stores the response, if there is a key
 */
export async function sendIdempotent(
  { db, sealer }: { db: Database; sealer: Sealer },
  request: FastifyRequest,
  reply: FastifyReply,
  owner: string,
  work: (db: Database | Transaction) => Promise<JsonResponse>,
): Promise<FastifyReply> {
  const keyed = readIdempotencyKey(request.headers['idempotency-key'], owner, request);
  const response =
    keyed === undefined
      ? await work(db)
      : await inTransaction(db, (tx) => runIdempotent(tx, keyed, work, sealer));
  return sendResponse(reply, response);
}
