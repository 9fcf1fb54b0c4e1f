/**
 * Runs code in a thread of another process through its inspector. Tests use it to make the thread of the delivery
 * engine throw or hang.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { NuncioProcess } from './process.ts';

interface InspectorMessage {
  id?: number;
  method?: string;
  params?: { sessionId?: string };
}

/** Node options that start the inspector on any free port. */
export const inspectable = ['--inspect=127.0.0.1:0'];

/**
 * Evaluates an expression in the first worker thread of a process that was started `inspectable`.
 * @returns when the thread has accepted the expression, which may not have finished yet
 */
export async function evaluateInThread(nuncio: NuncioProcess, expression: string): Promise<void> {
  const address = async (): Promise<string> => {
    for (;;) {
      const found = /Debugger listening on (ws:\S+)/.exec(nuncio.output())?.[1];
      if (found !== undefined) return found;
      await sleep(20);
    }
  };
  const socket = new WebSocket(await address());
  await new Promise((resolve) => socket.addEventListener('open', resolve, { once: true }));
  const attached = new Promise<string>((resolve) => {
    socket.addEventListener('message', ({ data }) => {
      const { method, params } = JSON.parse(String(data)) as InspectorMessage;
      if (method === 'NodeWorker.attachedToWorker') resolve(params?.sessionId as string);
    });
  });
  const ask = (id: number, method: string, params: Record<string, unknown>) => {
    const answered = new Promise<void>((resolve) => {
      socket.addEventListener('message', ({ data }) => {
        if ((JSON.parse(String(data)) as InspectorMessage).id === id) resolve();
      });
    });
    socket.send(JSON.stringify({ id, method, params }));
    return answered;
  };
  await ask(1, 'NodeWorker.enable', { waitForDebuggerOnStart: false });
  const message = JSON.stringify({ id: 1, method: 'Runtime.evaluate', params: { expression } });
  await ask(2, 'NodeWorker.sendMessageToWorker', { sessionId: await attached, message });
  socket.close();
}
