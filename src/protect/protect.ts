/**
 * `nuncio/protect`: verifies access tokens of a Nuncio server in a server of your own, and publishes events to it.
 * Independent of the other rooms, because it is published separately.
 */

export type { ExpressMiddleware, FastifyHook, HttpListener, ProtectedListener } from './adapters.ts';
export type { Check, Grant } from './check.ts';
export type { Principal } from './claims.ts';
export type { ProtectedRequest, RequestHeaders } from './credentials.ts';
export type { ErrorResponse } from './error_response.ts';
export { createProtector, type Protector, type ProtectorOptions } from './protector.ts';
export {
  createPublisher,
  type NewEvent,
  PublishError,
  type Publisher,
  type PublisherOptions,
  type PublishOptions,
} from './publisher.ts';
export { createReplayStore, type ReplayStore } from './replay.ts';
export type { ResourceMetadata } from './resource_metadata.ts';
