/** The entry point of the thread for fetches (see fetch_thread.ts). */

import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { answerFetches, type FetchThreadData } from './fetch_thread.ts';
import { serveCalls } from './outgoing_calls.ts';

const port = parentPort as MessagePort;
serveCalls(port, answerFetches(port, workerData as FetchThreadData));
