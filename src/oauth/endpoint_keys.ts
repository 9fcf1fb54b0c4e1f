/** What the limits of the endpoints where clients authenticate count: keys of clients, addresses, and pairs of them. */

import { networksOf, wideLimitFactor } from '../http/network.ts';
import { addressRemedy } from './limited_request.ts';

export interface Key {
  key: string;
  /** Multiplies the limit. */
  factor: number;
  /** What the limit counts, and what to do. */
  remedy: string;
}

/** For authenticated clients: one client sends requests for all of its users. */
const clientFactor = 10;

const remedies = {
  app: 'It counts the requests of the app for tokens, introspection and revocation. Use each access token until it expires.',
  appBegins:
    'It counts the pushed and device requests of the app. Limit how many sign-ins one visitor can begin.',
  appCodes:
    'It counts the codes of the app that were refused. Redeem a code only if its state belongs to the visitor.',
  appPolls: 'It counts the requests of the app for the tokens of devices on which nobody has signed in yet.',
  appFailures:
    'It counts the requests at one address that named the app and were refused because its credentials are wrong.',
  publicApps: `It counts the requests of apps without credentials at one address. Use each access token until it expires. ${addressRemedy}`,
  begins: `It counts the authorization requests, sign-ins and sign-outs that begin at one address. ${addressRemedy}`,
  failures: `It counts the requests at one address that were refused because no app authenticated. Correct the client_id and its credentials. ${addressRemedy}`,
};

export function clientKey(id: string): Key {
  return { key: `oauth client:${id}`, factor: clientFactor, remedy: remedies.app };
}

/** Introspections by an API of one holder's tokens. */
export function holderKey(id: string, app: string, holder: string): Key {
  return {
    key: `oauth client:${id} app:${app} holder:${holder}`,
    factor: clientFactor,
    remedy: remedies.app,
  };
}

/** Tokens that strangers send to an API. */
export function unknownTokensKey(id: string): Key {
  return { key: `oauth unknown tokens:${id}`, factor: clientFactor, remedy: remedies.app };
}

/** Codes that strangers send to an app. */
export function refusedCodesKey(id: string): Key {
  return { key: `oauth refused codes:${id}`, factor: clientFactor, remedy: remedies.appCodes };
}

/** Requests for the tokens of devices on which nobody has signed in. Strangers can have an app ask for any number of them. */
export function devicePollsKey(id: string): Key {
  return { key: `oauth device polls:${id}`, factor: clientFactor, remedy: remedies.appPolls };
}

/** Pushed and device requests of a client. */
export function clientBeginKey(id: string): Key {
  return { key: `oauth begins:${id}`, factor: clientFactor, remedy: remedies.appBegins };
}

/** Shared with the authorization requests of the address (request_limit.ts). */
export function addressBeginKeys(address: string): Key[] {
  return addressKeys('begin', address, 1, remedies.begins);
}

/** Requests that a page of another site has a browser send. Any page can, for an app of its own. */
export function pageBeginKeys(address: string): Key[] {
  return addressKeys('page begin', address, 1, remedies.begins);
}

export function publicKeys(id: string, address: string): Key[] {
  return [
    ...addressKeys('oauth public', address, clientFactor, remedies.publicApps),
    ...addressKeys(`oauth client:${id}`, address, 1, remedies.publicApps),
  ];
}

/** Requests in which no client authenticated. */
export function failureKeys(address: string): Key[] {
  return addressKeys('oauth', address, 1, remedies.failures);
}

/** Those that a page of another site has a browser send. */
export function embeddedKeys(address: string): Key[] {
  return addressKeys('oauth embedded', address, 1, remedies.failures);
}

/** Those that name a client that has authenticated from the address. */
export function knownFailureKeys(id: string, address: string): Key[] {
  return addressKeys(`oauth failures:${id}`, address, clientFactor, remedies.appFailures);
}

/** The narrow network comes last: its state is the one that is reported. */
function addressKeys(prefix: string, address: string, factor: number, remedy: string): Key[] {
  const { near, wide } = networksOf(address);
  const own = { key: `${prefix} address:${near}`, factor, remedy };
  return wide === null
    ? [own]
    : [{ key: `${prefix} address:${wide}`, factor: factor * wideLimitFactor, remedy }, own];
}
