/**
 * The OpenTelemetry Collector with an OTLP receiver and an exporter that prints what it gets: built on first use by the project's own
 * builder, which needs Go and some minutes.
 */

import { execFile } from 'node:child_process';
import { access, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { fileLock } from '../../../src/database/embedded/file_lock.ts';
import { prepareGoTool } from './go_tool.ts';

const run = promisify(execFile);
const version = 'v0.165.0';
const home = fileURLToPath(
  new URL(`../../../node_modules/.cache/opentelemetry-collector-${version}/`, import.meta.url),
);
const buildMs = 1_200_000;

const manifest = `dist:
  name: collector
  output_path: ./dist
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver ${version}
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/debugexporter ${version}
`;

/** @returns the path of the program, or the reason why it is unavailable */
export async function prepareCollector(): Promise<{ program: string } | { missing: string }> {
  const builder = await prepareGoTool('go.opentelemetry.io/collector/cmd/builder', version);
  if ('missing' in builder) return builder;
  const program = join(home, 'dist', 'collector');
  await mkdir(home, { recursive: true });
  const lock = await fileLock(join(home, 'lock'), buildMs);
  try {
    await access(program).catch(async () => {
      await writeFile(join(home, 'builder.yaml'), manifest);
      const options = { cwd: home, timeout: buildMs, maxBuffer: 16 * 1024 * 1024 };
      await run(builder.program, ['--config', 'builder.yaml'], options);
    });
    return { program };
  } catch (error) {
    return { missing: `the collector cannot be built: ${(error as Error).message.split('\n', 1)[0]}` };
  } finally {
    lock.release();
  }
}

/** A span, as the exporter printed it. */
export interface CollectedSpan {
  name: string;
  kind: string;
  traceId: string;
  id: string;
  parentId: string;
  attributes: Record<string, string>;
}

/** Reads the spans of the exporter's output. */
export function readSpans(output: string): CollectedSpan[] {
  return output
    .split(/^Span #\d+$/m)
    .slice(1)
    .map((text) => {
      const field = (name: string) => new RegExp(`^ +${name} *: (.*)$`, 'm').exec(text)?.[1]?.trim() ?? '';
      const attributes = [...text.matchAll(/^ +-> ([\w.]+): \w+\((.*)\)$/gm)].map(
        ([, name = '', value = '']) => [name, value],
      );
      return {
        name: field('Name'),
        kind: field('Kind'),
        traceId: field('Trace ID'),
        id: field('ID'),
        parentId: field('Parent ID'),
        attributes: Object.fromEntries(attributes),
      };
    });
}
