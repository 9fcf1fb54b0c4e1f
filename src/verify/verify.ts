/**
 * `nuncio/verify`: verifies deliveries of a Nuncio server, and handles each of them once or in order. Independent of the other
 * rooms, because it is published separately. It uses Web Crypto and no module of Node.
 */

export {
  deliveryOf,
  type ExpressRequestLike,
  type ExpressResponseLike,
  expressVerifier,
  type FastifyRequestLike,
  type FastifyScopeLike,
  fastifyVerifier,
  fromLambda,
  fromRequest,
  type HonoContextLike,
  honoVerifier,
  type LambdaEventLike,
  type ReceiverOptions,
} from './adapters.ts';
export { type Delivery, type VerifyOptions, verify } from './delivery.ts';
export { VerificationError, type VerificationErrorCode } from './error.ts';
export {
  type Handle,
  HandlingError,
  type HandlingErrorCode,
  type HandlingOptions,
  inOrder,
  once,
} from './handling.ts';
export type { DeliveryHeaders, HeaderNames, HeaderPreset } from './headers.ts';
export type { PublicKeyList, PublicKeys } from './public_keys.ts';
export {
  type DeliveryStore,
  type MemoryStoreOptions,
  memoryStore,
  type PostgresConnectionLike,
  postgresStore,
  type SqliteDatabaseLike,
  sqliteStore,
  type TableOptions,
} from './stores.ts';
