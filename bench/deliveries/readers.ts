/**
 * Clients that read one URL without a pause, in a process of their own, so that they do not delay the publisher:
 * `readers.ts <url> <token> <clients>`. They end when the parent process disconnects.
 */

const [url = '', token = '', clients = '1'] = process.argv.slice(2);
const headers = { authorization: `Bearer ${token}` };

process.on('disconnect', () => process.exit(0));

async function read(): Promise<never> {
  for (;;) {
    await fetch(url, { headers }).then(
      (response) => response.arrayBuffer(),
      () => {},
    );
  }
}

await Promise.all(Array.from({ length: Number(clients) }, read));
