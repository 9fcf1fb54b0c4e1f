/**
 * Which requests go first when a node cannot serve all of them. The class of a route is decided when it is registered.
 *
 * | class | |
 * |---|---|
 * | exempt | health and metrics: cheap, and needed most when a node is overloaded |
 * | first | what people and apps need to sign in, to get and revoke tokens, and to end rights |
 * | ordinary | the API, publishing, agents |
 * | last | lists, exports, the console, the reference: expensive, or easily repeated by a person |
 */

import type { FastifyInstance } from 'fastify';
import type { Operation } from '../operation.ts';

/** In the order in which waiting requests are served. */
export const precedences = ['first', 'ordinary', 'last'] as const;
export type Precedence = (typeof precedences)[number];

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Absent for paths without a route. */
    precedence?: Precedence | 'exempt';
  }
}

const exempt = /^\/(?:livez|readyz|metrics)$/;
/** Pages and endpoints of sign-in, consent, tokens, sign-out and withdrawal, and what clients and pages load for them. */
const first =
  /^\/(?:interaction|account|device|login(?:-requests)?|assets|\.well-known|oauth\/(?:authorize|token|revoke|jwks|par|device|logout))(?:\/|$)/;
/** Ends a right: withdraws a grant, deletes or disables an account or an app, or ends a subscription. */
const rights = /^\/(?:admin\/)?(?:grants|accounts|account-links|apps|subscriptions)\/[^/]+$/;
const rarelyUrgent = /^\/(?:console|docs|admin|dev)(?:\/|$)/;

/** @param url the pattern of the route */
export function precedenceOf(method: string, url: string, operation?: Operation): Precedence | 'exempt' {
  if (exempt.test(url)) return 'exempt';
  if (first.test(url)) return 'first';
  if ((method === 'DELETE' || method === 'PATCH') && rights.test(url)) return 'first';
  if (rarelyUrgent.test(url)) return 'last';
  const isRead = method === 'GET' || method === 'HEAD';
  // A path of the API that does not end with an id is a list. Reading events is like receiving deliveries.
  return isRead &&
    operation !== undefined &&
    !url.endsWith('/api') &&
    url !== '/subscriptions/:id/events' &&
    !/\/:\w+$/.test(url)
    ? 'last'
    : 'ordinary';
}

/**
 * Adds its class to each route that is registered from now on.
 * @returns the class of a request before its route is looked up. It is wrong at most between the ordinary and the last class
 */
export function classifyRoutes(
  app: FastifyInstance,
): (method: string, path: string) => Precedence | 'exempt' {
  const lists = new Set<string>();
  let isList: RegExp | undefined;
  app.addHook('onRoute', (route) => {
    const method = [route.method].flat()[0] ?? 'GET';
    const precedence = precedenceOf(method, route.url, route.config?.operation);
    route.config = { ...route.config, precedence };
    if (precedence === 'last' && method === 'GET') lists.add(toPattern(route.url));
  });
  return (method, path) => {
    const precedence = precedenceOf(method, path);
    if (precedence !== 'ordinary' || (method !== 'GET' && method !== 'HEAD')) return precedence;
    isList ??= new RegExp(`^(?:${[...lists].join('|')})$`);
    return isList.test(path) ? 'last' : 'ordinary';
  };
}

function toPattern(url: string): string {
  return url
    .replaceAll(/[^\w/:*-]/g, '\\$&')
    .replaceAll(/:\w+/g, '[^/]+')
    .replaceAll('*', '.*');
}
