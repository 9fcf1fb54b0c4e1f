/** Admits tokens for webhooks, and finds out whose subscriptions they give access to. */

import { ownerOf } from '../../webhooks/subscriptions/owner.ts';
import type { Owner } from '../../webhooks/subscriptions/subscription.ts';
import { type Admission, token } from '../admission.ts';

export const reader = owner('read');
export const writer = owner('write');

function owner(action: 'read' | 'write'): Admission<Owner> {
  const { admit, ...rule } = token(`${action}:webhooks`);
  return { ...rule, admit: async (parts, request) => ownerOf(await admit(parts, request), action) };
}
