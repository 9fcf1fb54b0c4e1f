/** Addresses of the server that are no operations of the API, by the beginning of their paths, and for whom they are. */

export const otherAddresses: Readonly<Record<string, string>> = {
  '/': 'anyone: the start page',
  '/account': 'a browser: pages of the signed-in user',
  '/asyncapi.json': 'anyone: the events, as AsyncAPI',
  '/assets': 'anyone: files of the pages',
  '/console': 'anyone: the files of the console',
  '/dev': 'a browser on the same machine, in development: kept mails',
  '/docs': 'anyone: the reference, to try out',
  '/device': 'a browser: the pages of a device code',
  '/interaction': 'a browser: sign-in and consent',
  '/livez': 'anyone: health of the process',
  '/logos': 'anyone: logos of apps',
  '/mcp': 'agents, where the [endpoint](../agents.md) is on',
  '/metrics': 'monitoring: see [operations.md](../operations.md#metrics)',
  '/oauth': 'clients: the authorization server',
  '/openapi.json': 'anyone: the reference, as OpenAPI',
  '/readyz': 'anyone: whether the node can serve',
  '/.well-known': 'anyone: metadata of the authorization server',
};
