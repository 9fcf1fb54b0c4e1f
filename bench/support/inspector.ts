/** Asks a server that was started with `--inspect` to collect garbage, and how much its objects then occupy. */

export interface LiveHeap {
  /** Bytes of the objects of the main thread. */
  objects: number;
  /** Bytes of buffers outside of the heap. */
  buffers: number;
}

interface Reply {
  id: number;
  result: Record<string, number>;
}

/** Collects all garbage of the main thread. */
export async function collect(port: number): Promise<LiveHeap> {
  const targets = (await (await fetch(`http://127.0.0.1:${port}/json`)).json()) as {
    webSocketDebuggerUrl: string;
  }[];
  const socket = new WebSocket(targets[0]?.webSocketDebuggerUrl ?? '');
  await new Promise((resolve, reject) => {
    socket.addEventListener('open', resolve, { once: true });
    socket.addEventListener('error', reject, { once: true });
  });
  let last = 0;
  const ask = (method: string) =>
    new Promise<Reply['result']>((resolve) => {
      last += 1;
      const id = last;
      socket.addEventListener('message', ({ data }) => {
        const reply = JSON.parse(String(data)) as Reply;
        if (reply.id === id) resolve(reply.result);
      });
      socket.send(JSON.stringify({ id, method }));
    });
  // What finalizers release is garbage for the next one.
  for (let round = 0; round < 3; round += 1) await ask('HeapProfiler.collectGarbage');
  const { usedSize = 0, backingStorageSize = 0 } = await ask('Runtime.getHeapUsage');
  socket.close();
  return { objects: usedSize, buffers: backingStorageSize };
}
