/**
 * What a subscription gets of an event: its body in the subscription's version and format, before it is signed. The stored event stays
 * as it was published, so every attempt, resend and read makes the same body of it.
 */

import type { ConversionSource } from '../../events/conversion_source.ts';
import { resourceLink } from '../../events/resource_link.ts';
import { versionFor } from '../../events/versions.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import { type ConversionTurn, ConversionTurns, type Pace } from './conversion_turns.ts';
import { ConversionError, Converter, PostponedError } from './converter.ts';
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

type Revision = Pick<Subscription, 'format' | 'version'>;

export class Presenter {
  /** Of the requests of this node. */
  readonly turns = new ConversionTurns();
  readonly #settings: PresentationSettings;
  readonly #onError: (error: Error) => void;
  readonly #converter: Converter;
  /** Of all kinds; empty if none has versions. */
  readonly #newestVersion: string;
  readonly #thin = new WeakMap<EventContent, Buffer>();
  /** Converted bodies by version, and those that are being converted. They are freed with the event. */
  readonly #converted = new WeakMap<EventContent, Map<string, Buffer | Promise<Buffer>>>();
  readonly #reportedAt = new Map<string, number>();

  /** @param onError receives errors of the platform's functions, at most one a minute for each kind and version */
  constructor(settings: PresentationSettings, onError: (error: Error) => void) {
    this.#settings = settings;
    this.#onError = onError;
    this.#converter = new Converter(settings.conversions);
    const names = [...settings.versions.values()].flat().map(({ name }) => name);
    this.#newestVersion = names.sort().at(-1) ?? '';
  }

  /**
   * @returns the event with the body that the subscription gets, without the envelope of CloudEvents. A promise if the body must be
   *   converted, which rejects with a ConversionError if that fails; a PostponedError if the turn does not have the conversion.
   */
  present(
    { format, version: pinned }: Revision,
    event: EventContent,
    turn?: ConversionTurn,
  ): EventContent | Promise<EventContent> {
    const { version, kind } = event;
    if (format === 'thin') return { ...event, body: this.#thinBody(event) };
    if (version === null) return event;
    const wanted = this.#wantedVersion(kind, version, pinned);
    // A node with a newer configuration published it. Nodes of that configuration can send it.
    if (wanted === null) return this.#refuse(kind, version, 'this node does not know the version');
    if (wanted === version) return this.#describe(event, version);
    const describe = (body: Buffer) => this.#describe({ ...event, body }, wanted);
    const body = this.#convert(event, version, wanted, turn);
    return body instanceof Promise ? body.then(describe) : describe(body);
  }

  /** Whether there may be events that must be converted. It needs no event. */
  mayConvert({ format, version: pinned }: Revision): boolean {
    return format !== 'thin' && this.#newestVersion > (pinned ?? '');
  }

  /** Which turn `present` needs for such an event, whatever its body is. */
  paceOf(
    { format, version: pinned }: Revision,
    event: Pick<EventContent, 'kind' | 'version' | 'accountId'>,
  ): Pace {
    const { kind, version } = event;
    if (format === 'thin' || version === null) return 'none';
    const wanted = this.#wantedVersion(kind, version, pinned);
    if (wanted === version || wanted === null) return 'none';
    return this.#converter.isQuick(event, version, wanted) ? 'quick' : 'careful';
  }

  /** Whether `present` would return a promise. */
  mustConvert({ format, version: pinned }: Revision, event: EventContent): boolean {
    const { version, kind } = event;
    if (format === 'thin' || version === null) return false;
    const wanted = this.#wantedVersion(kind, version, pinned);
    if (wanted === version) return false;
    return wanted === null || !(this.#converted.get(event)?.get(wanted) instanceof Buffer);
  }

  /** The version that the subscription gets; null if this node does not know the version that the event has. */
  #wantedVersion(kind: string, version: string, pinned: string | null): string | null {
    if (version <= (pinned ?? '')) return version;
    const names = (this.#settings.versions.get(kind) ?? []).map(({ name }) => name);
    return names.includes(version) ? versionFor(names, pinned) : null;
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
  #convert(
    event: EventContent,
    from: string,
    to: string,
    turn: ConversionTurn | undefined,
  ): Buffer | Promise<Buffer> {
    const bodies = this.#converted.get(event) ?? new Map<string, Buffer | Promise<Buffer>>();
    this.#converted.set(event, bodies);
    const known = bodies.get(to);
    if (known !== undefined) return known;
    const body = this.#converter.convert(event, from, to, turn);
    bodies.set(to, body);
    body.then(
      (converted) => bodies.set(to, converted),
      (error: Error) => {
        // The next attempt tries again: the operator may have mended the function.
        bodies.delete(to);
        if (!(error instanceof PostponedError)) this.#report(event.kind, to, error.message);
      },
    );
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
    return template === undefined ? null : resourceLink(template, body.toString(), baseUrl);
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
