/**
 * What a subscription gets of an event: its body in the subscription's version and format, before it is signed. The stored event stays
 * as it was published, so every attempt, resend and read makes the same body of it.
 */

import type { ConversionSource } from '../../events/conversion_source.ts';
import { resourceLink } from '../../events/resource_link.ts';
import { versionFor } from '../../events/versions.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import { ConversionError, Converter } from './converter.ts';
import type { EventContent } from './delivery_request.ts';

/** A version of a kind. */
export interface PresentedVersion {
  name: string;
  /** Header lines that announce its end, each with its CRLF. */
  notices: string;
}

/** Everything that a presenter needs. It is sent to the engine's thread, so it has no functions. */
export interface PresentationSettings {
  /** Links of resources begin with it. */
  baseUrl: string;
  /** Templates of the links of resources, by kind. */
  resources: ReadonlyMap<string, string>;
  /** Versions by kind, oldest first. */
  versions: ReadonlyMap<string, readonly PresentedVersion[]>;
  conversions: ConversionSource | null;
}

/** Milliseconds between two reports about the same kind and version. */
const reportMs = 60_000;

export class Presenter {
  readonly #settings: PresentationSettings;
  readonly #onError: (error: Error) => void;
  readonly #converter: Converter;
  readonly #thin = new WeakMap<EventContent, Buffer>();
  /** Converted bodies by version. They are freed with the event. */
  readonly #converted = new WeakMap<EventContent, Map<string, Promise<Buffer>>>();
  readonly #reportedAt = new Map<string, number>();

  /** @param onError receives errors of the platform's functions, at most one a minute for each kind and version */
  constructor(settings: PresentationSettings, onError: (error: Error) => void) {
    this.#settings = settings;
    this.#onError = onError;
    this.#converter = new Converter(settings.conversions);
  }

  /**
   * @returns the event with the body that the subscription gets, without the envelope of CloudEvents. A promise if the body must be
   *   converted, which rejects with a ConversionError if that fails.
   */
  present(
    { format, version: pinned }: Pick<Subscription, 'format' | 'version'>,
    event: EventContent,
  ): EventContent | Promise<EventContent> {
    const { version, kind } = event;
    if (format === 'thin') return { ...event, body: this.#thinBody(event) };
    if (version === null) return event;
    if (version <= (pinned ?? '')) return this.#describe(event, version);
    const versions = this.#settings.versions.get(kind) ?? [];
    const names = versions.map(({ name }) => name);
    // A node with a newer configuration published it. Nodes of that configuration can send it.
    if (!names.includes(version)) return this.#refuse(kind, version, 'this node does not know the version');
    const wanted = versionFor(names, pinned);
    if (wanted === version) return this.#describe(event, version);
    return this.#convert(event, version, wanted).then((body) => this.#describe({ ...event, body }, wanted));
  }

  async stop(): Promise<void> {
    await this.#converter.stop();
  }

  #describe(event: EventContent, version: string): EventContent {
    const { versions, baseUrl } = this.#settings;
    const notices = versions.get(event.kind)?.find(({ name }) => name === version)?.notices ?? '';
    return { ...event, shown: { notices, schema: `${baseUrl}${schemaPath(event.kind, version)}` } };
  }

  /** Deliveries share their event objects, so each event is converted once for all subscriptions of a version. */
  #convert(event: EventContent, from: string, to: string): Promise<Buffer> {
    const bodies = this.#converted.get(event) ?? new Map<string, Promise<Buffer>>();
    this.#converted.set(event, bodies);
    let body = bodies.get(to);
    if (body === undefined) {
      const request = { kind: event.kind, from, to, body: event.body.toString() };
      body = this.#converter.convert(request, event.accountId ?? '');
      bodies.set(to, body);
      body.catch((error: Error) => {
        // The next attempt tries again: the operator may have mended the function.
        bodies.delete(to);
        this.#report(event.kind, to, error.message);
      });
    }
    return body;
  }

  async #refuse(kind: string, version: string, reason: string): Promise<never> {
    this.#report(kind, version, reason);
    throw new ConversionError(reason);
  }

  #report(kind: string, version: string, reason: string): void {
    const key = `${kind} ${version}`;
    const now = performance.now();
    if (now - (this.#reportedAt.get(key) ?? -reportMs) < reportMs) return;
    this.#reportedAt.set(key, now);
    this.#onError(
      new ConversionError(`bodies of ${kind} cannot be converted, version ${version}: ${reason}`),
    );
  }

  /** Each body is read once and not for every subscription. */
  #thinBody(event: EventContent): Buffer {
    let body = this.#thin.get(event);
    if (body === undefined) {
      const { id, kind } = event;
      body = Buffer.from(JSON.stringify({ id, kind, resource: this.#resourceOf(event) }));
      this.#thin.set(event, body);
    }
    return body;
  }

  #resourceOf({ kind, body }: EventContent): string | null {
    const { baseUrl, resources } = this.#settings;
    const template = resources.get(kind);
    return template === undefined ? null : resourceLink(template, JSON.parse(body.toString()), baseUrl);
  }
}

/** Where `/asyncapi.json` has the schema of a version. */
function schemaPath(kind: string, version: string): string {
  return `/asyncapi.json#/components/schemas/${schemaKey(kind, version)}`;
}

export function schemaKey(kind: string, version: string): string {
  return `${kind}_${version}`;
}

/** The headers that announce the end of a version (RFC 9745, RFC 8594). @param deprecation, sunset dates such as 2026-10-01 */
export function noticesOf({ deprecation, sunset }: { deprecation: string | null; sunset: string | null }) {
  const notices: [name: 'Deprecation' | 'Sunset', value: string][] = [];
  if (deprecation !== null)
    notices.push(['Deprecation', `@${Date.parse(`${deprecation}T00:00:00Z`) / 1_000}`]);
  if (sunset !== null) notices.push(['Sunset', new Date(`${sunset}T00:00:00Z`).toUTCString()]);
  return notices;
}
