/**
 * Who may read `/metrics`. With a token: who sends it. With a port of their own: whoever reaches that port. With neither:
 * programs on this machine that connect directly. The path alone protects nothing, because a proxy's rule for paths may not
 * know every spelling.
 */

import type { FastifyRequest } from 'fastify';
import { type Config, isLoopbackHost } from '../config/config.ts';
import { digest, digestEquals } from '../crypto/digest.ts';
import { addressMatcher } from './network.ts';
import { Problem } from './problem.ts';

/** Headers that proxies add, in addition to `X-Forwarded-…`. */
const proxyHeaders = ['forwarded', 'via', 'x-real-ip', 'x-client-ip', 'true-client-ip', 'cf-connecting-ip'];

/** @returns a function that throws Problem 401 or 403 if a request may not read the metrics */
export function metricsAccess({
  metricsPort,
  metricsToken,
  trustProxy,
}: Pick<Config, 'metricsPort' | 'metricsToken' | 'trustProxy'>): (request: FastifyRequest) => void {
  if (metricsToken !== null) {
    const expected = digest(metricsToken);
    return ({ headers: { authorization = '' } }) => {
      const [, token = ''] = /^Bearer +(\S+)$/i.exec(authorization) ?? [];
      if (digestEquals(digest(token), expected)) return;
      throw new Problem(401, 'Metrics need the token of NUNCIO_METRICS_TOKEN.', {
        code: 'metrics-token',
        headers: { 'www-authenticate': 'Bearer realm="metrics"' },
      });
    };
  }
  if (metricsPort !== null) return () => {};
  const isProxy = addressMatcher(trustProxy);
  return (request) => {
    if (isDirectAndLocal(request, isProxy)) return;
    throw new Problem(
      403,
      'Metrics are available on this machine only. For others, set NUNCIO_METRICS_PORT or NUNCIO_METRICS_TOKEN.',
      { code: 'metrics-local' },
    );
  };
}

/** Whether a program on this machine connected to this server, and not to a proxy on this machine. */
export function isDirectAndLocal({ raw }: FastifyRequest, isProxy: (address: string) => boolean): boolean {
  const { headers, httpVersion, socket } = raw;
  const address = (socket.remoteAddress ?? '').replace(/^::ffff:/, '');
  if (address !== '::1' && !address.startsWith('127.')) return false;
  if (isProxy(address)) return false;
  if (Object.keys(headers).some((name) => name.startsWith('x-forwarded-') || proxyHeaders.includes(name))) {
    return false;
  }
  // Proxies without those headers: some speak HTTP/1.0, others pass on the host that their client asked for.
  const url = URL.parse(`http://${headers.host ?? ''}`);
  return httpVersion === '1.1' && url !== null && isLoopbackHost(url.hostname);
}
