/**
 * Starts an application and Nuncio in one process. See README.md.
 */

import { createServer as createHttpServer } from 'node:http';
import { defineConfig, defineTool, ToolError, Type } from '../../src/index.ts';
import { createServer } from '../../src/library.ts';
import { readOptions } from '../options.ts';

readOptions(`usage: npm run example:inside

Starts a shop and a Nuncio server in one process: see examples/inside/README.md.
SHOP_PORT is the port of the shop (4300), the settings of Nuncio are those of docs/settings.md.
`);

/** The application's own state. */
const stock = new Map([
  ['tea', 12],
  ['coffee', 0],
]);

const stockOf = defineTool({
  name: 'stock_of',
  description: 'Returns how many of an article are in stock.',
  input: Type.Object({ article: Type.String() }),
  output: Type.Object({ count: Type.Integer() }),
  scope: 'read:stock',
  openWorld: false,
  handler({ article }) {
    const count = stock.get(article);
    if (count === undefined)
      throw new ToolError(`There is no ${article}. There are: ${[...stock.keys()].join(', ')}.`);
    return { count };
  },
});

const nuncio = await createServer(defineConfig({ tools: [stockOf], mcp: { enabled: true } }));

const shop = createHttpServer((_request, response) => {
  response.setHeader('content-type', 'application/json');
  response.end(JSON.stringify(Object.fromEntries(stock)));
});
const { SHOP_PORT: port = '4300' } = process.env;
shop.listen(Number(port), 'localhost', () => {
  process.stdout.write(`The shop listens at http://localhost:${port}, Nuncio at ${nuncio.address}\n`);
});

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, async () => {
    shop.close();
    shop.closeIdleConnections();
    await nuncio.close();
  });
}
