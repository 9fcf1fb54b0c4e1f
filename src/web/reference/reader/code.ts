/** Code blocks: highlighted JSON, and a request in several languages. */

import { type Html, html } from '../../../http/html.ts';

/** A block to scroll and copy. @param label for screen readers */
export function codeBlock(label: string, content: Html | string): Html {
  return html`<div class="code"><pre tabindex="0" role="group" aria-label="${label}"><code>${content}</code></pre></div>`;
}

/** A description, with `code` in backticks. */
export function prose(text: string): Html {
  return html`${text.split('`').map((part, index) => (index % 2 === 1 ? html`<code>${part}</code>` : part))}`;
}

const jsonParts = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** @param value any JSON value */
export function colouredJson(value: unknown): Html {
  const text = JSON.stringify(value, null, 2);
  const parts: (Html | string)[] = [];
  let end = 0;
  for (const match of text.matchAll(jsonParts)) {
    const [whole, string, colon] = match;
    parts.push(text.slice(end, match.index));
    const kind = colon !== undefined ? 'key' : string !== undefined ? 'string' : 'literal';
    parts.push(html`<span class="${kind}">${string ?? whole}</span>`, colon ?? '');
    end = match.index + whole.length;
  }
  parts.push(text.slice(end));
  return html`${parts}`;
}

export interface SampleRequest {
  method: string;
  url: string;
  needsToken: boolean;
  /** The body with its media type; undefined if there is none. Images are not shown. */
  body?: { type: string; value: unknown };
}

/** Whether the type is a file rather than JSON. */
export function isFile(type: string): boolean {
  return type.startsWith('image/');
}

/** A request in each language, by the language's name. */
export function requestSamples(
  request: SampleRequest,
): readonly (readonly [language: string, code: string])[] {
  return [
    ['curl', curl(request)],
    ['JavaScript', javascript(request)],
    ['Python', python(request)],
  ];
}

function curl({ method, url, needsToken, body }: SampleRequest): string {
  const lines = [`curl${method === 'get' ? '' : ` -X ${method.toUpperCase()}`} '${url}'`];
  if (needsToken) lines.push(`-H "Authorization: Bearer $TOKEN"`);
  if (body !== undefined) {
    lines.push(`-H 'Content-Type: ${body.type}'`);
    if (isFile(body.type)) lines.push(`--data-binary @logo.${extension(body.type)}`);
    else lines.push(`-d '${JSON.stringify(body.value, null, 2).replaceAll("'", `'\\''`)}'`);
  }
  return lines.join(' \\\n  ');
}

function javascript({ method, url, needsToken, body }: SampleRequest): string {
  const headers = [
    // biome-ignore lint/suspicious/noTemplateCurlyInString: a template in the sample
    needsToken ? '    Authorization: `Bearer ${token}`,' : null,
    body === undefined ? null : `    'Content-Type': '${body.type}',`,
  ].filter((line) => line !== null);
  const options = [
    method === 'get' ? null : `  method: '${method.toUpperCase()}',`,
    headers.length === 0 ? null : `  headers: {\n${headers.join('\n')}\n  },`,
    body === undefined ? null : `  body: ${javascriptBody(body)},`,
  ].filter((line) => line !== null);
  const argument = options.length === 0 ? '' : `, {\n${options.join('\n')}\n}`;
  return `const response = await fetch('${url}'${argument});`;
}

function javascriptBody({ type, value }: NonNullable<SampleRequest['body']>): string {
  if (isFile(type)) return `await readFile('logo.${extension(type)}')`;
  return `JSON.stringify(${indent(JSON.stringify(value, null, 2), 2)})`;
}

function extension(type: string): string {
  return type.slice(type.indexOf('/') + 1);
}

function python({ method, url, needsToken, body }: SampleRequest): string {
  const headers = [
    needsToken ? `"Authorization": f"Bearer {token}"` : null,
    body === undefined ? null : `"Content-Type": "${body.type}"`,
  ].filter((line) => line !== null);
  const parameters = [
    `"${url}"`,
    headers.length === 0 ? null : `headers={${headers.join(', ')}}`,
    body === undefined ? null : `data=${pythonBody(body)}`,
  ].filter((line) => line !== null);
  const imports =
    body === undefined || isFile(body.type) ? 'import requests' : 'import json\nimport requests';
  return `${imports}\n\nresponse = requests.${method}(\n    ${parameters.join(',\n    ')},\n)`;
}

function pythonBody({ type, value }: NonNullable<SampleRequest['body']>): string {
  if (isFile(type)) return `open("logo.${extension(type)}", "rb")`;
  return `json.dumps(${indent(pythonLiteral(value), 4)})`;
}

function pythonLiteral(value: unknown): string {
  const words: Readonly<Record<string, string>> = { true: 'True', false: 'False', null: 'None' };
  return JSON.stringify(value, null, 4).replace(jsonParts, (part) => words[part] ?? part);
}

function indent(text: string, by: number): string {
  return text.replaceAll('\n', `\n${' '.repeat(by)}`);
}
