/**
 * What carries messages to an engine: the channel to its thread, or to the same thread.
 */

import { MessageChannel, Worker } from 'node:worker_threads';
import { runEngine } from './engine.ts';
import type { EngineSettings, FromEngine, ToEngine } from './engine_messages.ts';

/**
 * Mebibytes for young objects at most (twice V8's own measure): what a delivery needs from its start to the writing of
 * its outcome should not outlive two collections, after which it would be copied to the old ones.
 */
const youngMebibytesMax = 96;
/**
 * And for all others at most. Far more than the engine has (50 MiB were live with a backlog of a million; bodies stand
 * elsewhere): by this number V8 decides how much may become garbage before it looks for it.
 */
const oldMebibytesMax = 1_024;

export interface EngineTransport {
  postMessage: (message: ToEngine, transferList?: ArrayBuffer[]) => void;
  end: () => Promise<void>;
}

/** @param onEnd told once the thread is gone, with all of its connections */
export function openThread(
  settings: EngineSettings,
  onMessage: (message: FromEngine) => void,
  onEnd: (error: unknown) => void,
): EngineTransport {
  // What npm publishes is JavaScript.
  const file = import.meta.url.endsWith('.ts') ? './engine_thread.ts' : './engine_thread.js';
  const thread = new Worker(new URL(file, import.meta.url), {
    workerData: settings,
    name: 'engine',
    resourceLimits: { maxYoungGenerationSizeMb: youngMebibytesMax, maxOldGenerationSizeMb: oldMebibytesMax },
  });
  let cause: unknown = new Error('the thread of the delivery engine has ended');
  thread.on('message', onMessage).on('error', (error) => {
    cause = error;
  });
  thread.on('exit', () => onEnd(cause));
  return {
    postMessage: (message, transferList) => thread.postMessage(message, transferList ?? []),
    async end() {
      await thread.terminate();
    },
  };
}

export function openHere(
  settings: EngineSettings,
  onMessage: (message: FromEngine) => void,
): EngineTransport {
  const { port1, port2 } = new MessageChannel();
  runEngine(settings, port2);
  port1.on('message', onMessage);
  return {
    postMessage: (message, transferList) => port1.postMessage(message, transferList ?? []),
    end: async () => port1.close(),
  };
}
