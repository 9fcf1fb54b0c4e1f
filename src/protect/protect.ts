/**
 * `nuncio/protect`, published on its own: what a server of one's own calls to take the access tokens of a Nuncio
 * server and to tell it what happened. Imports nothing of the rest.
 */

export type { ExpressMiddleware, FastifyHook, HttpListener, ProtectedListener } from './adapters.ts';
export type { Check, Grant } from './check.ts';
export type { Principal } from './claims.ts';
export type { ProtectedRequest, RequestHeaders } from './credentials.ts';
export { createProtector, type Protector, type ProtectorOptions } from './protector.ts';
export {
  createPublisher,
  type NewEvent,
  PublishError,
  type Publisher,
  type PublisherOptions,
  type PublishOptions,
} from './publisher.ts';
export type { Refusal } from './refusal.ts';
export { createReplayStore, type ReplayStore } from './replay.ts';
export type { ResourceMetadata } from './resource_metadata.ts';
