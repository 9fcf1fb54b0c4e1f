/**
 * An application that publishes by SQL and is killed: `<database URL> <account> <mark> before|after`. The last
 * parameter says whether it is killed before the commit or immediately after it.
 */

import pg from 'pg';

const [databaseUrl, account, mark, when] = process.argv.slice(2);
const client = new pg.Client({ connectionString: databaseUrl as string });
await client.connect();
await client.query('begin');
await client.query('insert into orders (mark) values ($1)', [mark]);
await client.query('select nuncio.publish($1, $2, $3)', [
  'push',
  account,
  { ref: `refs/heads/${mark}`, commits: [], repository: { name: 'example' } },
]);
if (when === 'after') await client.query('commit');
process.kill(process.pid, 'SIGKILL');
