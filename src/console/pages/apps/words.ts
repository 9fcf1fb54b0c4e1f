/** Titles and descriptions of app settings. */

import type { Choice } from '../../ui/fields.tsx';
import { deviceGrant } from './device_grant.ts';

export const applicationTypes: readonly Choice[] = [
  { id: 'web', title: 'Web', description: 'Runs on a server or in a browser, at https addresses.' },
  {
    id: 'native',
    title: 'Installed',
    description: 'Runs on a user’s own device: desktop, phone or terminal.',
  },
];

export const grants: readonly Choice[] = [
  {
    id: 'authorization_code',
    title: 'Authorization code',
    description: 'Users allow the app here and return to a redirect URI. PKCE is required.',
  },
  {
    id: 'refresh_token',
    title: 'Refresh token',
    description: 'The app renews its access without asking the user again.',
  },
  {
    id: deviceGrant,
    title: 'Device code',
    description: 'For TVs and terminals: the user enters a code on another device.',
  },
  {
    id: 'client_credentials',
    title: 'Client credentials',
    description: 'The app acts for itself, without a user. Needs client authentication.',
  },
];

export const authMethods: readonly Choice[] = [
  {
    id: 'client_secret_basic',
    title: 'Secret in a header',
    description: 'client_secret_basic: HTTP Basic authentication. Right for most apps with a server.',
  },
  {
    id: 'client_secret_post',
    title: 'Secret in the body',
    description: 'client_secret_post: for libraries that cannot send it in a header.',
  },
  {
    id: 'private_key_jwt',
    title: 'Private key',
    description: 'private_key_jwt: the app signs with its private key and publishes the public key.',
  },
  {
    id: 'none',
    title: 'None',
    description: 'A public client: it cannot keep a secret and relies on PKCE.',
  },
];

export const roles: readonly Choice[] = [
  { id: 'owner', title: 'Owner' },
  { id: 'developer', title: 'Developer' },
];

/** The role of an administrator who is not a member. */
const adminRole: Choice = { id: 'admin', title: 'Administrator' };

export function titleOfRole(role: string): string {
  return titleOf([...roles, adminRole], role);
}

export function titleOf(choices: readonly Choice[], id: string): string {
  return choices.find((choice) => choice.id === id)?.title ?? id;
}

export function hasSecret(authMethod: string): boolean {
  return authMethod.startsWith('client_secret_');
}

/** Templates for common kinds of apps. */
export interface Preset extends Choice {
  draft: { applicationType: string; grants: readonly string[]; authMethod: string };
}

export const presets: readonly Preset[] = [
  {
    id: 'server',
    title: 'Web app with a server',
    description: 'A server keeps the secret and calls the API.',
    draft: {
      applicationType: 'web',
      grants: ['authorization_code', 'refresh_token'],
      authMethod: 'client_secret_basic',
    },
  },
  {
    id: 'page',
    title: 'Single-page app',
    description: 'Runs in the browser, without a secret.',
    draft: { applicationType: 'web', grants: ['authorization_code', 'refresh_token'], authMethod: 'none' },
  },
  {
    id: 'native',
    title: 'Installed app',
    description: 'Desktop, phone or command line, without a secret.',
    draft: {
      applicationType: 'native',
      grants: ['authorization_code', 'refresh_token', deviceGrant],
      authMethod: 'none',
    },
  },
  {
    id: 'machine',
    title: 'Machine to machine',
    description: 'A service that acts for itself, without a user.',
    draft: { applicationType: 'web', grants: ['client_credentials'], authMethod: 'client_secret_basic' },
  },
];
