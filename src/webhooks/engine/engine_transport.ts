/** Carries messages to an engine in its own thread, or in this one. */

import { MessageChannel, Worker } from 'node:worker_threads';
import { runEngine } from './engine.ts';
import type { EngineSettings, FromEngine, ToEngine } from './engine_messages.ts';

/**
 * Maximum size of V8's young generation in MiB (twice the default). The objects of a delivery should not survive two
 * collections, because survivors are copied to the old generation.
 */
const youngMebibytesMax = 96;
/**
 * Maximum size of V8's old generation in MiB. Far more than the engine uses: 50 MiB were live with a backlog of a
 * million, and bodies are stored outside of the heap. V8 derives from it how much garbage may build up before a
 * collection.
 */
const oldMebibytesMax = 1_024;

export interface EngineTransport {
  postMessage: (message: ToEngine, transferList?: ArrayBuffer[]) => void;
  end: () => Promise<void>;
}

/** @param onEnd called once the thread and all its connections are gone */
export function openThread(
  settings: EngineSettings,
  onMessage: (message: FromEngine) => void,
  onEnd: (error: unknown) => void,
): EngineTransport {
  // The npm package contains JavaScript.
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
