/** The entry point of the engine's thread (see engine_handle.ts). */

import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { runEngine } from './engine.ts';
import type { EngineSettings } from './engine_messages.ts';

runEngine(workerData as EngineSettings, parentPort as MessagePort);
