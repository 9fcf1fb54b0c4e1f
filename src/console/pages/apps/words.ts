/** What an app can be, in words. */

import type { Choice } from '../../ui/fields.tsx';
import { deviceGrant } from './device_grant.ts';

export const applicationTypes: readonly Choice[] = [
  { id: 'web', title: 'Web', description: 'People use it in a browser, at addresses that begin with https.' },
  {
    id: 'native',
    title: 'Installed',
    description: 'It runs on people’s own devices: desktop, phone, terminal.',
  },
];

export const grants: readonly Choice[] = [
  {
    id: 'authorization_code',
    title: 'Authorization code',
    description: 'Users are sent here to allow the app, and sent back to a redirect URI. PKCE is required.',
  },
  {
    id: 'refresh_token',
    title: 'Refresh token',
    description: 'The app goes on after an access token has ended, without asking the user again.',
  },
  {
    id: deviceGrant,
    title: 'Device code',
    description: 'For televisions and terminals: the user types a code on another device.',
  },
  {
    id: 'client_credentials',
    title: 'Client credentials',
    description: 'The app acts for itself, without a user. It needs a way to authenticate.',
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
    description: 'private_key_jwt: the app signs with a key of its own, and publishes the public one.',
  },
  {
    id: 'none',
    title: 'None',
    description: 'A public app: it runs where no secret can be kept, and is protected by PKCE alone.',
  },
];

export function titleOf(choices: readonly Choice[], id: string): string {
  return choices.find((choice) => choice.id === id)?.title ?? id;
}

export function hasSecret(authMethod: string): boolean {
  return authMethod.startsWith('client_secret_');
}

/** Kinds of apps that people make, with what each needs. */
export interface Preset extends Choice {
  draft: { applicationType: string; grants: readonly string[]; authMethod: string };
}

export const presets: readonly Preset[] = [
  {
    id: 'server',
    title: 'Web app with a server',
    description: 'The server keeps a secret and calls the API.',
    draft: {
      applicationType: 'web',
      grants: ['authorization_code', 'refresh_token'],
      authMethod: 'client_secret_basic',
    },
  },
  {
    id: 'page',
    title: 'Single-page app',
    description: 'Everything runs in the browser: there is no secret.',
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
    title: 'Machine',
    description: 'A program that acts for itself: no user is asked.',
    draft: { applicationType: 'web', grants: ['client_credentials'], authMethod: 'client_secret_basic' },
  },
];
