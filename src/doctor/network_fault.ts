/** Explains why a request got no response, in words. */

const faults: Readonly<Record<string, string>> = {
  ENOTFOUND: 'the host name does not exist',
  EAI_AGAIN: 'the DNS does not respond',
  ECONNREFUSED: 'nothing listens at this address',
  ECONNRESET: 'the connection was reset',
  ETIMEDOUT: 'the connection timed out',
  CERT_HAS_EXPIRED: 'the certificate has expired',
  DEPTH_ZERO_SELF_SIGNED_CERT: 'the certificate is self-signed',
  SELF_SIGNED_CERT_IN_CHAIN:
    'the certificate is of an authority that this machine does not know (set NODE_EXTRA_CA_CERTS)',
  UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    'the server does not send its intermediate certificate, or the certificate is of an authority that this machine does not know (set NODE_EXTRA_CA_CERTS)',
  ERR_TLS_CERT_ALTNAME_INVALID: 'the certificate is for another name',
  EPROTO: 'the port speaks no TLS, or another version',
};

/** @param error what `fetch` threw */
export function networkFault(error: unknown): string {
  const { cause, name, message } = error as Error;
  const code = String((cause as NodeJS.ErrnoException | undefined)?.code ?? '');
  if (name === 'TimeoutError') return 'no response in time';
  return faults[code] ?? (code === '' ? message : code);
}

/** Whether a proxy responds in place of a server that it does not reach. */
export function isGatewayError(status: number): boolean {
  return status >= 502 && status <= 504;
}

export const noNodeAdvice =
  'Start a node, or correct the addresses of the nodes in the configuration of the proxy. A proxy that found none tries again after seconds, nginx after 10 s.';
