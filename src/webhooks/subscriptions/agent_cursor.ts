/**
 * Cursors of agents: a place in a lane, authenticated for one grant, kind and arguments, so that a cursor cannot be made up, nor used
 * elsewhere. They are not encrypted: a lane and a sequence are in the id of each delivery. The same place always has the same cursor, so
 * each attempt of a delivery has the same body.
 *
 *   base64url of: version (1 byte), lane (8), sequence (8), milliseconds since 1970 (8), HMAC-SHA-256 (first 16)
 */

import { createHmac, timingSafeEqual } from 'node:crypto';
import { deriveKey } from '../../crypto/sealing.ts';

const version = 1;
const placeBytes = 25;
const macBytes = 16;
const textCharacters = Math.ceil(((placeBytes + macBytes) * 4) / 3);

export interface AgentPlace {
  lane: number;
  /** Everything up to it was received or skipped. */
  sequence: number;
  /** When the event at this place was created, or the cursor was issued. */
  at: Date;
}

/** What a cursor is bound to. */
export interface CursorBinding {
  grantId: string;
  /** The kind. */
  name: string;
  /** Canonical JSON. */
  arguments: string;
}

export class AgentCursors {
  readonly #key: Buffer;

  /** @param secret the deployment's key material */
  constructor(secret: Buffer) {
    this.#key = deriveKey(secret, 'agent-cursor');
  }

  write(binding: CursorBinding, { lane, sequence, at }: AgentPlace): string {
    const place = Buffer.allocUnsafe(placeBytes);
    place[0] = version;
    place.writeBigUInt64BE(BigInt(lane), 1);
    place.writeBigUInt64BE(BigInt(sequence), 9);
    place.writeBigUInt64BE(BigInt(at.getTime()), 17);
    return Buffer.concat([place, this.#mac(binding, place)]).toString('base64url');
  }

  /** @returns undefined if the cursor was not issued by this deployment for the same grant, kind and arguments */
  read(binding: CursorBinding, cursor: string): AgentPlace | undefined {
    if (cursor.length !== textCharacters) return undefined;
    const bytes = Buffer.from(cursor, 'base64url');
    // The decoder takes other spellings of the same bytes.
    if (bytes.toString('base64url') !== cursor) return undefined;
    if (bytes.length !== placeBytes + macBytes || bytes[0] !== version) return undefined;
    const place = bytes.subarray(0, placeBytes);
    if (!timingSafeEqual(this.#mac(binding, place), bytes.subarray(placeBytes))) return undefined;
    return {
      lane: Number(place.readBigUInt64BE(1)),
      sequence: Number(place.readBigUInt64BE(9)),
      at: new Date(Number(place.readBigUInt64BE(17))),
    };
  }

  #mac({ grantId, name, arguments: canonical }: CursorBinding, place: Buffer): Buffer {
    return createHmac('sha256', this.#key)
      .update(place)
      .update(JSON.stringify([grantId, name, canonical]))
      .digest()
      .subarray(0, macBytes);
  }
}
