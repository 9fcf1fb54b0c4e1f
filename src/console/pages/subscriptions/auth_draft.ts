/** How deliveries authenticate to the receiver, as a part of the form's draft and of a request body. */

import type { SubscriberAuth, SubscriberAuthGiven } from '../../api/generated.ts';

type AuthType = SubscriberAuth['type'];

export interface AuthDraft {
  /** `stored`: what the subscription has stays as it is. Its secret is never shown again. */
  choice: AuthType | 'none' | 'stored';
  /** Texts by the names of the API's members. */
  values: Readonly<Record<string, string>>;
}

export const noAuth: AuthDraft = { choice: 'none', values: {} };

export function authDraftOf(auth: SubscriberAuth | null): AuthDraft {
  return auth === null ? noAuth : { choice: 'stored', values: {} };
}

interface AuthField {
  member: string;
  label: string;
  isSecret?: true;
  isOptional?: true;
  placeholder?: string;
}

const authFields: Readonly<Record<AuthType, readonly AuthField[]>> = {
  basic: [
    { member: 'username', label: 'User name' },
    { member: 'password', label: 'Password', isSecret: true },
  ],
  header: [
    { member: 'name', label: 'Header name', placeholder: 'X-Api-Key' },
    { member: 'value', label: 'Header value', isSecret: true },
  ],
  oauth2: [
    { member: 'token_url', label: 'Token URL', placeholder: 'https://login.example.com/oauth/token' },
    { member: 'client_id', label: 'Client ID' },
    { member: 'client_secret', label: 'Client secret', isSecret: true },
    { member: 'scope', label: 'Scope (optional)', isOptional: true },
  ],
  mtls: [],
};

/** The fields of the chosen type. */
export function fieldsOf({ choice }: AuthDraft): readonly AuthField[] {
  return choice === 'none' || choice === 'stored' ? [] : authFields[choice];
}

/** Whether a field that is needed is empty. */
export function isIncomplete(draft: AuthDraft): boolean {
  return fieldsOf(draft).some(({ member, isOptional }) => !isOptional && !draft.values[member]?.trim());
}

/** Left out if nothing changes. */
export function authMember(draft: AuthDraft): { auth?: SubscriberAuthGiven | null } {
  const { choice, values } = draft;
  if (choice === 'stored') return {};
  if (choice === 'none') return { auth: null };
  const given = fieldsOf(draft)
    .map(({ member, isSecret }) => [member, isSecret ? values[member] : values[member]?.trim()])
    .filter(([, value]) => value !== undefined && value !== '');
  return { auth: { type: choice, ...Object.fromEntries(given) } };
}

/** What a subscription has, in words. */
export function describeAuth(auth: SubscriberAuth | null): string {
  switch (auth?.type) {
    case undefined:
      return 'Signature only';
    case 'basic':
      return `Password of the user ${auth.username}`;
    case 'header':
      return `Header ${auth.name}`;
    case 'oauth2':
      return `Access token of ${URL.parse(auth.token_url ?? '')?.host}, as ${auth.client_id}`;
    default:
      return 'Client certificate of this server';
  }
}
