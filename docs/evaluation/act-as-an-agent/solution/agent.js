import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const { MCP_URL, TOKEN } = process.env;
const client = new Client({ name: 'evaluation', version: '1.0.0' });
const requestInit = { headers: { authorization: `Bearer ${TOKEN}` } };
await client.connect(new StreamableHTTPClientTransport(new URL(MCP_URL), { requestInit }));
const call = async (name, given) => {
  const result = await client.callTool({ name, arguments: given });
  if (result.isError) throw new Error(JSON.stringify(result.content));
  return result.structuredContent;
};
const { id } = await call('article_create', { title: 'From an agent' });
await call('article_publish', { id });
console.log(id);
await client.close();
