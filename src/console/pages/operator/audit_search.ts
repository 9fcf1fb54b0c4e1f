/** What the address of the audit log can ask for. */

export interface AuditSearch {
  account?: string;
  client?: string;
}

export function readAuditSearch(search: Record<string, unknown>): AuditSearch {
  const { account, client } = search;
  return {
    ...(typeof account === 'string' ? { account } : {}),
    ...(typeof client === 'string' ? { client } : {}),
  };
}
