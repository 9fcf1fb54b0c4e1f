/** The entry point of the thread for challenges (see challenge_thread.ts). */

import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { serveCalls } from '../../egress/outgoing_calls.ts';
import { answerChallenges, type ChallengeThreadData } from './challenge_thread.ts';

const port = parentPort as MessagePort;
serveCalls(port, answerChallenges(port, workerData as ChallengeThreadData));
