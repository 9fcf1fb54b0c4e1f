/**
 * The app's API calls, with the user's access token.
 */

export interface Article {
  id: string;
  title: string;
  body: string;
  state: 'draft' | 'published';
  _links: Record<string, { href: string; method?: string }>;
}

export interface Subscription {
  id: string;
  url: string;
  signature: string;
}

/** A response other than 2xx. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;

  constructor(status: number, detail: string) {
    super(`the API responded with ${status}: ${detail}`);
    this.status = status;
  }
}

export class Api {
  readonly #baseUrl: string;
  readonly #accessToken: string;

  constructor(baseUrl: string, accessToken: string) {
    this.#baseUrl = baseUrl;
    this.#accessToken = accessToken;
  }

  /** The user of the token. */
  whoAmI(): Promise<{ account: { id: string } | null; scopes: string[] }> {
    return this.#call('GET', '/api');
  }

  async articles(): Promise<Article[]> {
    const { items } = await this.#call<{ items: Article[] }>('GET', '/articles');
    return items;
  }

  createArticle(title: string, body: string): Promise<Article> {
    return this.#call('POST', '/articles', { title, body });
  }

  /** Follows the article's own `publish` link. */
  publish(article: Article): Promise<Article> {
    const link = article._links.publish;
    if (link === undefined) throw new Error('this article cannot be published');
    return this.#call(link.method ?? 'POST', link.href);
  }

  subscribe(url: string, kinds: string[], signature: string): Promise<Subscription> {
    return this.#call('POST', '/subscriptions', { url, kinds, signature });
  }

  /** The signing secret of the subscription. */
  async secretOf(subscription: Subscription): Promise<string> {
    const { secret } = await this.#call<{ secret: string }>(
      'GET',
      `/subscriptions/${subscription.id}/secret`,
    );
    return secret;
  }

  async #call<Answer>(method: string, path: string, body?: unknown): Promise<Answer> {
    const response = await fetch(new URL(path, this.#baseUrl), {
      method,
      headers: {
        authorization: `Bearer ${this.#accessToken}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new ApiError(response.status, text);
    return JSON.parse(text) as Answer;
  }
}
