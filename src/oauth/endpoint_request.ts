/** What a request to an endpoint where clients authenticate contains, before oidc-provider has read it. */

import type { IncomingMessage } from 'node:http';
import { type ParsedUrlQuery, parse } from 'node:querystring';
import { decodeJwt } from 'jose';
import type { KoaContextWithOIDC } from 'oidc-provider';
import { deviceCodeGrantType } from '../clients/grant_types.ts';
import { stepKey } from '../connections/step.ts';

const bodies = new WeakMap<IncomingMessage, Buffer>();

/** Stores the body of a request for the lifetime of the request object: the body may name the client. */
export function rememberBody(raw: IncomingMessage, body: Buffer): void {
  bodies.set(raw, body);
}

/**
 * Whether a page of another site has a browser send the request as one for an image or a script, or as a beacon, whose response nobody can read (Fetch Metadata). These must not
 * count like others for the network of the browser: any page could keep everybody there from signing in.
 */
export function isEmbedded({ headers }: IncomingMessage): boolean {
  return headers['sec-fetch-mode'] === 'no-cors' && headers['sec-fetch-site'] !== 'same-origin';
}

/**
 * Whether a page of another site may have a browser send the request: it is cross-site, and not the page that the browser shows next. Programs that are no browsers do not send these
 * headers, so whoever forges them only gets other limits.
 */
export function isOfOtherPage({ headers }: IncomingMessage): boolean {
  const { 'sec-fetch-site': site, 'sec-fetch-dest': destination } = headers;
  return site === 'cross-site' && destination !== 'document';
}

/** The client that a request names. */
export interface ClaimedClient {
  id: string;
  /** Whether the request contains no credentials besides the client id. */
  isNamedOnly: boolean;
}

/** The client that a request names, before it is authenticated. */
export function claimedClient(ctx: KoaContextWithOIDC): ClaimedClient | undefined {
  const basic = /^basic ([A-Za-z0-9+/=]+)$/i.exec(ctx.get('authorization'))?.[1];
  if (basic !== undefined) {
    const [id = ''] = Buffer.from(basic, 'base64').toString().split(':', 1);
    return { id: String(parse(`id=${id}`).id), isNamedOnly: false };
  }
  const form = formOf(ctx);
  const [id, secret, assertion] = [form.client_id, form.client_secret, form.client_assertion].map(textOf);
  const claimed = id ?? (assertion === undefined ? undefined : subjectOf(assertion));
  if (claimed === undefined) return undefined;
  return { id: claimed, isNamedOnly: secret === undefined && assertion === undefined };
}

/** What a token request shares with the other steps of its attempt. Nobody but the app knows its code. */
export function attemptKeys(ctx: KoaContextWithOIDC): string[] {
  const { code, device_code: device } = formOf(ctx);
  const [sentCode, sentDevice] = [textOf(code), textOf(device)];
  if (sentCode !== undefined) return [stepKey('code', sentCode)];
  return sentDevice === undefined ? [] : [stepKey('device', sentDevice)];
}

/** The code that a token request redeems. */
export interface RedeemedCode {
  code: string;
  /** Whether it is that of a device, which asks again until somebody has decided (RFC 8628 section 3.4). */
  isOfDevice: boolean;
}

export function redeemedCode(ctx: KoaContextWithOIDC): RedeemedCode | undefined {
  if (ctx.path !== '/oauth/token') return undefined;
  const { grant_type: grantType, code, device_code: deviceCode } = formOf(ctx);
  const isOfDevice = grantType === deviceCodeGrantType;
  if (!isOfDevice && grantType !== 'authorization_code') return undefined;
  const sent = textOf(isOfDevice ? deviceCode : code);
  return sent === undefined ? undefined : { code: sent, isOfDevice };
}

export function introspectedToken(ctx: KoaContextWithOIDC): string | undefined {
  return ctx.path === '/oauth/introspect' ? textOf(formOf(ctx).token) : undefined;
}

function formOf(ctx: KoaContextWithOIDC): ParsedUrlQuery {
  return parse((bodies.get(ctx.req) ?? '').toString());
}

/** oidc-provider treats an empty parameter as absent. */
function textOf(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

function subjectOf(assertion: string): string | undefined {
  try {
    const { sub } = decodeJwt(assertion);
    return typeof sub === 'string' ? sub : undefined;
  } catch {
    return undefined;
  }
}
