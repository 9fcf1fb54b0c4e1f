/** What others see: DNS, the base URL, its certificate, the proxies in front, and the egress proxy. */

import { createPrivateKey, X509Certificate } from 'node:crypto';
import { lookup } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { connect, isIP } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { type Config, isLoopbackHost } from '../config/config.ts';
import { isGatewayError, noNodeAdvice } from './network_fault.ts';
import { type Check, check, durationText, type Probe } from './report.ts';

const timeoutMs = 5_000;
/** Days until a certificate expires. Certificates of 90 days are usually renewed after 60. */
const expiry = { warning: 21, error: 3 };
const daySeconds = 86_400;

export function networkProbes(config: Config): readonly Probe[] {
  const { hostname, protocol } = new URL(config.baseUrl);
  const probes: Probe[] = [
    { name: 'base_url.dns', run: () => checkName(hostname) },
    { name: 'base_url', run: () => checkBaseUrl(config) },
    { name: 'proxies', run: async () => checkProxySetting(config) },
  ];
  if (protocol === 'https:') probes.push({ name: 'base_url.tls', run: () => checkTls(config.baseUrl) });
  const { tls, egressProxy } = config;
  if (tls !== null) {
    probes.push({ name: 'certificate', run: () => checkCertificate(tls.certFile, tls.keyFile, hostname) });
  }
  if (egressProxy !== null) probes.push({ name: 'egress_proxy', run: () => checkEgressProxy(egressProxy) });
  return probes;
}

async function checkName(hostname: string): Promise<Check> {
  const name = 'base_url.dns';
  const bare = hostname.replace(/^\[|\]$/g, '');
  try {
    const addresses = await lookup(bare, { all: true });
    return check(name, 'ok', `${bare} is ${addresses.map(({ address }) => address).join(', ')}`);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return check(
      name,
      'error',
      `the name ${bare} of NUNCIO_BASE_URL cannot be resolved (${code})`,
      'Correct NUNCIO_BASE_URL, or create the DNS record. A record that exists elsewhere may be missing in the DNS of this machine.',
    );
  }
}

async function checkBaseUrl({ baseUrl }: Config): Promise<Check> {
  const name = 'base_url';
  const isLocal = isLoopbackHost(new URL(baseUrl).hostname);
  const before = performance.now();
  try {
    const response = await fetch(`${baseUrl}/livez`, {
      redirect: 'manual',
      signal: AbortSignal.timeout(timeoutMs),
    });
    await response.body?.cancel();
    const seconds = (performance.now() - before) / 1_000;
    const values = { status: response.status, seconds: Math.round(seconds * 1_000) / 1_000 };
    if (response.headers.has('nuncio-version')) {
      return check(name, 'ok', `a server responds at ${baseUrl}`, null, values);
    }
    if (isGatewayError(response.status)) {
      return check(
        name,
        'error',
        `the proxy at ${baseUrl} reaches no node (status ${response.status})`,
        noNodeAdvice,
        values,
      );
    }
    return check(
      name,
      'error',
      `what responds at ${baseUrl} is not this server (status ${response.status})`,
      'Send the whole origin to the server in the configuration of the proxy, without changes to paths or redirects.',
      values,
    );
  } catch (error) {
    const cause = (error as Error).cause as NodeJS.ErrnoException | undefined;
    const reason = cause?.code ?? (error as Error).name;
    if (isCertificateFault(reason)) {
      return check(
        name,
        'unknown',
        `no request to ${baseUrl} is possible: its certificate is refused (${reason})`,
        'Mend the certificate first: see base_url.tls.',
        { reason },
      );
    }
    return check(
      name,
      isLocal ? 'warning' : 'error',
      `nothing responds at ${baseUrl} (${reason})`,
      isLocal
        ? 'Start the server.'
        : 'Check that a server runs, and the way to it from this machine: proxy, firewall, certificate.',
      { reason },
    );
  }
}

/** A proxy that is not trusted hides the addresses of all clients. */
function checkProxySetting({ baseUrl, tls, trustProxy }: Config): Check {
  const { protocol } = new URL(baseUrl);
  const values = { trusted: trustProxy.join(',') };
  if (protocol === 'https:' && tls === null && trustProxy.length === 0) {
    return check(
      'proxies',
      'warning',
      'a proxy terminates TLS, but NUNCIO_TRUST_PROXY is not set: all clients share one rate limit',
      'Set NUNCIO_TRUST_PROXY to the addresses of the proxy.',
      values,
    );
  }
  return check(
    'proxies',
    'ok',
    trustProxy.length === 0 ? 'no proxy is trusted' : `trusted proxies: ${trustProxy.join(', ')}`,
    null,
    values,
  );
}

/** Codes of Node for a certificate that a client refuses. */
function isCertificateFault(code: string): boolean {
  return /CERT|LEAF_SIGNATURE|SELF_SIGNED/.test(code);
}

async function checkTls(baseUrl: string): Promise<Check> {
  const { hostname, port } = new URL(baseUrl);
  const bare = hostname.replace(/^\[|\]$/g, '');
  const name = 'base_url.tls';
  const found = await new Promise<{ until: string; problem: string | null } | null>((resolve, reject) => {
    const socket = connectTls({
      host: bare,
      port: Number(port || 443),
      servername: bare.includes(':') || /^[\d.]+$/.test(bare) ? '' : bare,
      // The reason is reported below.
      rejectUnauthorized: false,
    });
    socket.setTimeout(timeoutMs, () => socket.destroy(new Error('timeout')));
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED') resolve(null);
      else reject(error);
    });
    socket.once('secureConnect', () => {
      const { valid_to: until } = socket.getPeerCertificate();
      resolve({ until, problem: socket.authorized ? null : String(socket.authorizationError) });
      socket.destroy();
    });
  });
  // The check of the base URL reports it.
  if (found === null) return check(name, 'unknown', `nothing listens at ${baseUrl}`);
  const left = (Date.parse(found.until) - Date.now()) / 1_000;
  if (found.problem !== null && left > 0) {
    return check(
      name,
      'error',
      `the certificate at ${baseUrl} is not trusted (${found.problem})`,
      'Install the whole chain of the certificate. For an authority of your own, set NODE_EXTRA_CA_CERTS here and wherever apps run.',
      { problem: found.problem },
    );
  }
  return judgeExpiry(name, `the certificate at ${baseUrl}`, left);
}

function judgeExpiry(name: string, what: string, secondsLeft: number): Check {
  const days = Math.floor(secondsLeft / daySeconds);
  const values = { days_left: days };
  if (secondsLeft <= 0) {
    return check(name, 'error', `${what} has expired`, 'Renew it.', values);
  }
  const summary = `${what} expires in ${durationText(secondsLeft)}`;
  const advice = 'Renew it, and check why it was not renewed by itself.';
  if (days < expiry.error) return check(name, 'error', summary, advice, values);
  if (days < expiry.warning) return check(name, 'warning', summary, advice, values);
  return check(name, 'ok', summary, null, values);
}

/** The server's own certificate and key. */
async function checkCertificate(certFile: string, keyFile: string, hostname: string): Promise<Check> {
  const name = 'certificate';
  const [cert, key] = await Promise.all([readFile(certFile), readFile(keyFile)]);
  const certificate = new X509Certificate(cert);
  if (!certificate.checkPrivateKey(createPrivateKey(key))) {
    return check(
      name,
      'error',
      `${keyFile} is not the key of ${certFile}`,
      'Install the certificate and the key that belong together.',
    );
  }
  const bare = hostname.replace(/^\[|\]$/g, '');
  const fits = isIP(bare) === 0 ? certificate.checkHost(bare) : certificate.checkIP(bare);
  if (fits === undefined) {
    return check(
      name,
      'error',
      `${certFile} is not for ${bare} (it is for ${certificate.subjectAltName ?? certificate.subject})`,
      'Use a certificate for the host of NUNCIO_BASE_URL.',
    );
  }
  return judgeExpiry(name, certFile, (certificate.validToDate.getTime() - Date.now()) / 1_000);
}

async function checkEgressProxy(url: string): Promise<Check> {
  const { hostname, port, host } = new URL(url);
  const name = 'egress_proxy';
  try {
    await new Promise<void>((resolve, reject) => {
      const socket = connect(Number(port || 80), hostname.replace(/^\[|\]$/g, ''));
      socket.setTimeout(timeoutMs, () => socket.destroy(new Error('timeout')));
      socket.once('error', reject);
      socket.once('connect', () => {
        socket.destroy();
        resolve();
      });
    });
    return check(name, 'ok', `the egress proxy ${host} accepts connections`);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    return check(
      name,
      'error',
      `the egress proxy ${host} cannot be reached (${code ?? message})`,
      'Start it, or correct NUNCIO_EGRESS_PROXY. No webhook is sent until then.',
    );
  }
}
