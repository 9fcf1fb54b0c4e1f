/**
 * Adapters for frameworks. The frameworks' types are declared here as far as they are used, so that none of them is a
 * dependency.
 */

import { type Bytes, fromBase64 } from './bytes.ts';
import { type Delivery, type VerifyOptions, verify } from './delivery.ts';
import { VerificationError } from './error.ts';
import type { DeliveryHeaders } from './headers.ts';

/** The options of `verify`, without what the request has. */
export type ReceiverOptions = Omit<VerifyOptions, 'headers' | 'body'>;

const bodyBytesMax = 1_048_576;
const deliveries = new WeakMap<object, Delivery>();

/**
 * The delivery of a request that an adapter has verified.
 * @param request the request of Express or Fastify, or the context of Hono
 * @throws Error if no adapter has verified it
 */
export function deliveryOf(request: object): Delivery {
  const delivery = deliveries.get(request);
  if (delivery === undefined) throw new Error('the request was not verified: add the verifier to its route');
  return delivery;
}

/** Headers and body of a Fetch `Request`: `verify({ ...(await fromRequest(request)), secret })`. Reads the body. */
export async function fromRequest<Headers extends DeliveryHeaders>(request: {
  readonly headers: Headers;
  arrayBuffer(): Promise<ArrayBuffer>;
}): Promise<{ headers: Headers; body: ArrayBuffer }> {
  return { headers: request.headers, body: await request.arrayBuffer() };
}

/** The event of an AWS Lambda function behind API Gateway, a load balancer or a function URL. */
export interface LambdaEventLike {
  readonly headers?: object | null | undefined;
  readonly multiValueHeaders?: object | null | undefined;
  readonly body?: string | null | undefined;
  readonly isBase64Encoded?: boolean | undefined;
}

/** Headers and body of a Lambda event: `verify({ ...fromLambda(event), secret })`. */
export function fromLambda(event: LambdaEventLike): { headers: LambdaEventLike; body: string | Bytes } {
  const text = event.body ?? '';
  return { headers: event, body: (event.isBase64Encoded && fromBase64(text)) || text };
}

export interface ExpressRequestLike extends AsyncIterable<unknown> {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  body?: unknown;
}

export interface ExpressResponseLike {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(text: string): unknown;
}

/**
 * Express: `app.post('/hooks', expressVerifier({ secret }), handler)`, before `express.json()`. The handler gets the parsed body
 * as `request.body` and the delivery by `deliveryOf(request)`.
 */
export function expressVerifier(options: ReceiverOptions) {
  return async (
    request: ExpressRequestLike,
    response: ExpressResponseLike,
    next: (error?: unknown) => void,
  ): Promise<void> => {
    try {
      // Some platforms read the body and keep its bytes as `rawBody`.
      const { rawBody } = request as { rawBody?: unknown };
      const body = (rawBody ?? request.body ?? (await readAll(request))) as Bytes;
      deliveries.set(request, await verify({ ...options, headers: request.headers, body }));
      request.body = parse(body);
    } catch (error) {
      if (!(error instanceof VerificationError)) return next(error);
      response.statusCode = error.status;
      response.setHeader('content-type', 'application/json');
      response.end(describe(error));
      return;
    }
    next();
  };
}

export interface FastifyRequestLike {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
}

export interface FastifyScopeLike<Request> {
  removeAllContentTypeParsers(): unknown;
  addContentTypeParser(
    contentType: string,
    options: { parseAs: 'buffer' },
    parser: (request: Request, body: Bytes) => Promise<unknown>,
  ): unknown;
  addHook(name: 'preHandler', hook: (request: Request) => Promise<void>): unknown;
}

/**
 * Fastify: `app.register(async (hooks) => { fastifyVerifier(hooks, { secret }); hooks.post('/hooks', handler); })`. All routes of
 * the scope are verified. The handler gets the parsed body as `request.body` and the delivery by `deliveryOf(request)`.
 */
export function fastifyVerifier<Request extends FastifyRequestLike>(
  scope: FastifyScopeLike<Request>,
  options: ReceiverOptions,
): void {
  const check = async (request: Request, body: Bytes | string): Promise<void> => {
    deliveries.set(request, await verify({ ...options, headers: request.headers as DeliveryHeaders, body }));
  };
  scope.removeAllContentTypeParsers();
  scope.addContentTypeParser('*', { parseAs: 'buffer' }, async (request, body) => {
    await check(request, body);
    return parse(body);
  });
  // Fastify parses no body where there is none, such as in a GET request.
  scope.addHook('preHandler', async (request) => {
    if (!deliveries.has(request)) await check(request, '');
  });
}

export interface HonoContextLike {
  readonly req: { readonly raw: { readonly headers: DeliveryHeaders }; arrayBuffer(): Promise<ArrayBuffer> };
}

/**
 * Hono: `app.post('/hooks', honoVerifier({ secret }), handler)`. The handler reads the body with `c.req.json()` and gets the
 * delivery by `deliveryOf(c)`.
 */
export function honoVerifier(options: ReceiverOptions) {
  return async (context: HonoContextLike, next: () => Promise<void>): Promise<Response | undefined> => {
    try {
      const body = await context.req.arrayBuffer();
      deliveries.set(context, await verify({ ...options, headers: context.req.raw.headers, body }));
    } catch (error) {
      if (!(error instanceof VerificationError)) throw error;
      const headers = { 'content-type': 'application/json' };
      return new Response(describe(error), { status: error.status, headers });
    }
    await next();
    return undefined;
  };
}

/** The server shows this text in the delivery's log. */
function describe({ code, message }: VerificationError): string {
  return JSON.stringify({ error: code, message });
}

function parse(body: Bytes | string): unknown {
  return JSON.parse(typeof body === 'string' ? body : new TextDecoder().decode(body));
}

/** Reads a body to its end, so that the response arrives, but keeps none that is too large. */
async function readAll(stream: AsyncIterable<unknown>): Promise<Bytes> {
  let chunks: Bytes[] = [];
  let length = 0;
  for await (const chunk of stream) {
    length += (chunk as Bytes).length;
    if (length > bodyBytesMax) chunks = [];
    else chunks.push(chunk as Bytes);
  }
  if (length > bodyBytesMax) {
    throw new VerificationError('body-too-large', `The body has more than ${bodyBytesMax} bytes.`);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}
