/** For `--import` of a server process: prints each connection that the process or one of its threads opens, as `outgoing <address> <port>`. */

import { Socket } from 'node:net';

const { connect } = Socket.prototype;

Socket.prototype.connect = function (this: Socket, ...options: unknown[]) {
  // A local socket has a path and no port.
  this.on('connectionAttempt', (address: string, port: number | undefined) => {
    process.stderr.write(`outgoing ${address} ${port ?? 'local'}\n`);
  });
  return Reflect.apply(connect, this, options) as Socket;
};
