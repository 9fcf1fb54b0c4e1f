/** Search parameters of the audit log page. */

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
