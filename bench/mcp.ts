/**
 * The endpoint for agents.
 *
 *   npx node bench/mcp.ts                              both
 *   npx node bench/mcp.ts tools [seconds]              tool calls beside the same requests to the API
 *   npx node bench/mcp.ts events [streams] [seconds]   polls without news, and idle streams
 */

const [what = 'all', ...rest] = process.argv.slice(2);

if (!['all', 'tools', 'events'].includes(what)) throw new Error(`${what}: there are tools and events`);
if (what !== 'events') await (await import('./mcp/tools.ts')).measureTools(rest);
if (what !== 'tools') await (await import('./mcp/events.ts')).measureEvents(rest);
