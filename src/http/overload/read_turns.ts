/**
 * Turns of what connections send (loop_turns.ts). Node.js reads 64 KiB of a connection at a time, and to parse these takes 9 ms if they are
 * chunks of one byte, before anything else can see them. In one turn of the event loop it reads all connections that have sent something.
 * Of TLS connections, what is encrypted has turns (encrypted_pieces.ts). A handshake takes the server many times what it takes a client that never completes it,
 * so handshakes have turns of their own: whoever has a connection does not wait behind those of thousands of addresses.
 */

import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import { Server as TlsServer } from 'node:tls';
import type { Sharer } from '../../shared/owner_turns.ts';
import { decryptInTurns } from './encrypted_pieces.ts';
import { countAccepted } from './loop_rest.ts';
import { LoopTurns } from './loop_turns.ts';

/** @param ownerOf who a connection belongs to. Called only for those that wait */
export function readInTurns(server: Server, ownerOf: (socket: Socket) => Sharer): void {
  const turns = new LoopTurns();
  server.on('connection', countAccepted);
  if (server instanceof TlsServer) {
    const handshakes = new LoopTurns();
    decryptInTurns(server, (tcp, work, isServed) =>
      (isServed ? turns : handshakes).add(() => ownerOf(tcp), work),
    );
    return;
  }
  server.on('connection', (socket: Socket) => {
    const push = socket.push.bind(socket);
    // Node.js hands what it has read to this function, and reads no more of the connection until it has returned true or done its work.
    socket.push = (chunk: unknown) => {
      let more = false;
      turns.add(
        () => ownerOf(socket),
        () => {
          if (!socket.destroyed) more = push(chunk);
        },
      );
      return more;
    };
    // Otherwise Node's parser reads by itself.
    socket.on('data', () => {});
  });
}
