/** The entry point of the thread that converts bodies to earlier versions (see webhooks/sending/converter.ts). */

import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { serveConversions } from './events/conversion.ts';
import { loadPlatform } from './platform.ts';

const port = parentPort as MessagePort;
const { eventKinds } = await loadPlatform((workerData as { file: string }).file);
serveConversions(port, eventKinds);
port.postMessage('ready');
