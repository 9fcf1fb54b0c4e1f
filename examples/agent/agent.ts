/** The agent, step by step. Fails at the first step that does not work. */

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { auth, createMCPClient, type MCPClient } from '@ai-sdk/mcp';
import { createUser, type Nuncio, triggerEvent } from '../reader/nuncio.ts';
import { converse, type Tools } from './model.ts';
import { AgentSignIn } from './oauth.ts';
import { type Receiver, startReceiver } from './receiver.ts';
import type { User } from './user.ts';

/** The agent asks for invoices of at least this many cents. */
const amountMin = 1_000;

/** @throws the error of the failed step */
export async function runAgent({ baseUrl, started }: Nuncio, user: User): Promise<void> {
  step(started ? `started a server at ${baseUrl}` : `found a server at ${baseUrl}`);
  const { email, password } = user.login;
  await createUser(email, password);
  step(`created the user ${email}`);
  const receiver = await startReceiver();
  try {
    await live(`${baseUrl}/mcp`, user, receiver);
  } finally {
    await receiver.close();
  }
}

async function live(url: string, user: User, receiver: Receiver): Promise<void> {
  const signIn = await connect(url, user, receiver);
  const agent = await createMCPClient({
    transport: { type: 'http', url, authProvider: signIn },
    experimental_events: { store: receiver.store },
  });
  try {
    const tools = (await agent.tools()) as unknown as Tools;
    step(`found ${Object.keys(tools).length} tools: ${Object.keys(tools).slice(0, 4).join(', ')} …`);
    await useTools(tools);
    await subscribe(agent, receiver);
    await hearOfInvoice(tools, user.login, receiver);
    await user.disconnect();
    await until(() => receiver.ends.length > 0, 'the end of the subscription');
    assert.equal(receiver.ends[0]?.message, 'Forbidden');
    step('the user disconnected the agent: its subscription ended, with one last signed message');
    await until(() => isRefused(agent), 'the server to refuse the tokens');
    step('the server refuses its tokens');
  } finally {
    await agent.close();
  }
}

/** The library knows the URL, and finds the rest. */
async function connect(url: string, user: User, receiver: Receiver): Promise<AgentSignIn> {
  const redirectUri = `${receiver.url}/callback`;
  const signIn = new AgentSignIn(redirectUri);
  await assert.rejects(createMCPClient({ transport: { type: 'http', url, authProvider: signIn } }));
  assert.ok(signIn.page, 'the server did not say where users sign in');
  step(
    `connected to ${url}: found the authorization server, and registered as ${signIn.clientInformation()?.client_id}`,
  );
  await user.authorize(signIn.page, redirectUri);
  const answer = await receiver.redirected;
  const outcome = await auth(signIn, {
    serverUrl: url,
    authorizationCode: answer.get('code') ?? '',
    callbackState: answer.get('state') ?? '',
    callbackIssuer: answer.get('iss') ?? '',
  });
  assert.equal(outcome, 'AUTHORIZED', `the user was sent back with ${answer}`);
  step(`the user signed in and consented to ${signIn.tokens()?.scope}`);
  return signIn;
}

async function useTools(tools: Tools): Promise<void> {
  await converse(
    tools,
    [
      () => ({ tool: 'article_create', given: { title: 'What the agent wrote', body: 'By a tool call.' } }),
      ({ id }) => ({ tool: 'article_publish', given: { id } }),
      ({ title, state }) => ({ text: `“${title}” is ${state}.` }),
    ],
    step,
  );
}

async function subscribe(agent: MCPClient, receiver: Receiver): Promise<void> {
  const { experimental_events: events } = agent;
  const names = (await events.list()).events.map(({ name }) => name);
  step(`found ${names.length} kinds of events: ${names.join(', ')}`);
  const { id, refreshBefore } = await events.subscribe({
    name: 'invoice.paid',
    arguments: { amount: { $gte: amountMin } },
    delivery: { mode: 'webhook', url: `${receiver.url}/events`, allowInsecureLocalhost: true },
  });
  step(`subscribed to invoice.paid of at least ${amountMin} cents as ${id}, until ${refreshBefore}`);
}

/** The operator's program publishes two invoices, of which the agent asked for one. */
async function hearOfInvoice(tools: Tools, { email }: User['login'], receiver: Receiver): Promise<void> {
  await triggerEvent('invoice.paid', email, [`invoice.amount=${amountMin - 1}`, 'invoice.id=small']);
  await triggerEvent('invoice.paid', email, [`invoice.amount=${amountMin}`, 'invoice.id=large']);
  await until(() => receiver.events.length > 0, 'a delivery');
  const [event, ...others] = receiver.events;
  assert.ok(event);
  const { invoice } = event.data as { invoice: { id: string; amount: number } };
  assert.deepEqual([invoice.id, others.length], ['large', 0]);
  step(`received ${event.name} of invoice ${invoice.id}, verified by @ai-sdk/mcp`);
  await converse(
    tools,
    [
      () => ({ tool: 'article_create', given: { title: `Invoice ${invoice.id} was paid` } }),
      ({ title }) => ({ text: `I noted: ${title}.` }),
    ],
    step,
  );
}

async function isRefused(agent: MCPClient): Promise<boolean> {
  try {
    await agent.listTools();
    return false;
  } catch {
    return true;
  }
}

/** Waits as long as it takes a user. */
async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  for (let waited = 0; !(await holds()); waited += 50) {
    if (waited === 30_000) process.stdout.write(`… waiting for ${what}\n`);
    await sleep(50);
  }
}

function step(text: string): void {
  process.stdout.write(`✓ ${text}\n`);
}
