/** Asks a name server over TCP, because its answer is too long for UDP (RFC 7766). Reads the beginning of the answer only. */

import { randomInt } from 'node:crypto';
import { connect } from 'node:net';
import { closeAtOnce } from '../closing.ts';
import { type Answer, idOf, type NameServer, type Question, readAnswer, writeQuery } from './message.ts';

/** Bytes of an answer that are read. Sixteen addresses behind a chain of aliases need fewer. */
const answerBytesMax = 4_096;
/** Milliseconds for the whole answer. Few questions are asked over TCP at once. */
const answerMs = 2_500;
const lengthBytes = 2;

/**
 * @param onAnswer called at most once
 * @param onFailure called instead if there is no usable answer
 * @returns ends the connection
 */
export function askOverTcp(
  { address, port }: NameServer,
  question: Question,
  onAnswer: (answer: Answer) => void,
  onFailure: () => void,
): () => void {
  const id = randomInt(0x1_0000);
  const query = writeQuery(id, question);
  const socket = connect(port, address);
  socket.unref();
  let received = Buffer.alloc(0);
  const end = () => {
    clearTimeout(timeout);
    closeAtOnce(socket.removeAllListeners('data').removeAllListeners('close'));
  };
  const fail = () => {
    end();
    onFailure();
  };
  const timeout = setTimeout(fail, answerMs);
  socket.on('error', () => {}).on('close', fail);
  socket.on('data', (chunk: Buffer) => {
    received = Buffer.concat([received, chunk]);
    if (received.length < lengthBytes) return;
    const length = received.readUInt16BE(0);
    const wanted = lengthBytes + Math.min(length, answerBytesMax);
    if (received.length < wanted) return;
    const message = received.subarray(lengthBytes, wanted);
    const answer = idOf(message) === id ? readAnswer(message, question) : null;
    // Its addresses may come later.
    const isCut = length > answerBytesMax && answer?.addresses.length === 0;
    if (answer === null || isCut) return fail();
    end();
    onAnswer(answer);
  });
  const head = Buffer.alloc(lengthBytes);
  head.writeUInt16BE(query.length);
  socket.write(Buffer.concat([head, query]));
  return end;
}
