/** One operation: description and parameters on one side, a request and its response on the other. */

import { type Html, html } from '../../../http/html.ts';
import { codeBlock, colouredJson, isFile, prose, requestSamples } from './code.ts';
import {
  type ApiDocument,
  type MediaType,
  type PlacedOperation,
  resolve,
  resolveResponse,
  type Schema,
  type ShownParameter,
} from './document.ts';
import { sampleOf } from './sample.ts';
import { fieldHead, schemaFields } from './schema_fields.ts';

export function operationSection(document: ApiDocument, operation: PlacedOperation): Html {
  const { operationId, method, path, summary, description, parameters = [] } = operation;
  const scopes = scopesOf(operation);
  return html`<section class="operation" id="${operationId}" aria-labelledby="${operationId}-title">
<div class="words">
<h3 id="${operationId}-title"><a href="#${operationId}">${summary}</a></h3>
<p class="route"><span class="method ${method}">${method.toUpperCase()}</span> <code>${path}</code></p>
${description === undefined ? null : html`<p>${prose(description)}</p>`}
<p class="scopes">${
    scopes === null
      ? 'Needs no token.'
      : scopes.length === 0
        ? 'Needs an access token.'
        : html`Needs a token with ${scopes.map((scope, index) => html`${index === 0 ? '' : ' and '}<code>${scope}</code>`)}.`
  }</p>
${parameterLists(document, parameters)}
${bodyFields(document, operation)}
${responseFields(document, operation)}
</div>
<div class="samples">
${requestSection(document, operation)}
${responseSamples(document, operation)}
</div>
</section>`;
}

/** @returns null if the operation needs no token */
function scopesOf({ security = [] }: PlacedOperation): readonly string[] | null {
  if (security.length === 0) return null;
  return security.flatMap((one) => one.oauth ?? []);
}

const places: readonly (readonly [place: string, title: string])[] = [
  ['path', 'Path parameters'],
  ['query', 'Query parameters'],
  ['header', 'Headers'],
];

function parameterLists(document: ApiDocument, parameters: readonly ShownParameter[]): Html {
  return html`${places.map(([place, title]) => {
    const some = parameters.filter((parameter) => parameter.in === place);
    if (some.length === 0) return null;
    return html`<h4>${title}</h4><ul class="fields">${some.map(
      ({ name, schema, required, description }) =>
        html`<li>${fieldHead(document, name, schema, required ?? place === 'path', description)}</li>`,
    )}</ul>`;
  })}`;
}

function bodyFields(document: ApiDocument, { requestBody }: PlacedOperation): Html | null {
  if (requestBody === undefined) return null;
  return html`${Object.entries(requestBody.content).map(
    ([type, { schema }]) =>
      html`<h4>Body <span class="type">${type}</span></h4>${schemaFields(document, schema) ?? html`<p class="about">${fieldlessBody(type, resolve(document, schema).schema)}</p>`}`,
  )}`;
}

function fieldlessBody(type: string, { description }: Schema): string {
  if (isFile(type)) return description ?? 'The content of the file.';
  return type === 'application/json-patch+json'
    ? 'Operations of a JSON Patch (RFC 6902).'
    : 'An empty object.';
}

function responseFields(document: ApiDocument, { responses }: PlacedOperation): Html {
  const all = Object.entries(responses).map(([status, given]) => ({
    status,
    ...resolveResponse(document, given),
  }));
  const problems = all.filter(({ status }) => status >= '400');
  return html`<h4>Responses</h4><ul class="responses">${all
    .filter(({ status }) => status < '400')
    .map(({ status, description, content }) => {
      const schema = content?.['application/json']?.schema;
      const fields = schema === undefined ? null : schemaFields(document, schema);
      return html`<li><p><span class="status">${status}</span> ${prose(description ?? '')}</p>${
        fields === null ? null : html`<details><summary>Fields of the response</summary>${fields}</details>`
      }</li>`;
    })}</ul>
<details class="problems"><summary>Errors: ${problems.map(({ status }) => status).join(', ')}</summary><ul class="responses">${problems.map(
    ({ status, description }) =>
      html`<li><p><span class="status bad">${status}</span> ${prose(description ?? '')}</p></li>`,
  )}</ul></details>`;
}

/** The JSON body in samples and in the form. */
function exampleBody(
  document: ApiDocument,
  { requestBody }: PlacedOperation,
): { type: string; value: unknown } | undefined {
  const [first] = Object.entries(requestBody?.content ?? {});
  if (first === undefined) return undefined;
  const [type, media] = first;
  return { type, value: exampleOf(document, media) };
}

function exampleOf(document: ApiDocument, { schema, example }: MediaType): unknown {
  return example ?? sampleOf(document, schema);
}

function requestSection(document: ApiDocument, operation: PlacedOperation): Html {
  const { operationId, method, path } = operation;
  const url = `${document.servers[0]?.url ?? ''}${path}`;
  const body = exampleBody(document, operation);
  const needsToken = scopesOf(operation) !== null;
  const samples = requestSamples({ method, url, needsToken, ...(body === undefined ? {} : { body }) });
  return html`<div class="tabs"><fieldset><legend>Request</legend>${samples.map(
    ([language], index) =>
      html`<label><input type="radio" name="${operationId}-language" value="${language}"${index === 0 ? html` checked` : null}>${language}</label>`,
  )}</fieldset>${samples.map(
    ([language, code]) =>
      html`<div class="tab" data-language="${language}">${codeBlock(`Request in ${language}`, code)}</div>`,
  )}</div>${body !== undefined && isFile(body.type) ? null : tryForm(operation, body)}`;
}

/** Shown only by the page's script. */
function tryForm(operation: PlacedOperation, body: { type: string; value: unknown } | undefined): Html {
  const { operationId, method, path, parameters = [] } = operation;
  return html`<details class="try" hidden><summary>Try it</summary>
<form data-method="${method}" data-path="${path}"${body === undefined ? null : html` data-type="${body.type}"`}${scopesOf(operation) === null ? null : html` data-needs-token`}>
${parameters.map(({ name, in: place, required }) => {
  const isRequired = required ?? place === 'path';
  return html`<label>${name}<input name="${name}" data-in="${place}" autocomplete="off" spellcheck="false"${isRequired ? html` required` : null}></label>`;
})}
${body === undefined ? null : html`<label>Body<textarea id="${operationId}-body" rows="6" spellcheck="false">${JSON.stringify(body.value, null, 2)}</textarea></label>`}
<button type="submit">Send request</button>
</form>
<div class="result" role="status"></div>
</details>`;
}

function responseSamples(document: ApiDocument, { responses }: PlacedOperation): Html {
  return html`${Object.entries(responses)
    .filter(([status]) => status < '300')
    .map(([status, given]) => {
      const media = resolveResponse(document, given).content?.['application/json'];
      if (media === undefined) return null;
      return html`<p class="sample-title">Response ${status}</p>${codeBlock(
        `Response ${status}`,
        colouredJson(exampleOf(document, media)),
      )}`;
    })}`;
}
