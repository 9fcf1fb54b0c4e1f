/** The thread of the engine: what `new Worker` is given (see engine_remote.ts). */

import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { runEngine } from './engine.ts';
import type { EngineSettings } from './engine_messages.ts';

runEngine(workerData as EngineSettings, parentPort as MessagePort);
