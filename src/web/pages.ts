/**
 * The pages that people see, registered together: they alone take forms.
 */

import formBody from '@fastify/formbody';
import type { FastifyInstance } from 'fastify';
import { type AccountPagesOptions, registerAccountPages } from './account_pages.ts';
import { createFormTokens } from './form_token.ts';
import { type InteractionPagesOptions, registerInteractionPages } from './interaction_pages.ts';
import { registerStylesheet } from './page.ts';
import { registerStartPage } from './start_page.ts';

/** The largest form taken, in bytes. */
const formBytesMax = 16_384;

export interface PagesOptions
  extends Omit<InteractionPagesOptions, 'formTokens'>,
    Omit<AccountPagesOptions, 'formTokens'> {
  secret: Buffer;
  baseUrl: string;
}

export function registerPages(app: FastifyInstance, options: PagesOptions): void {
  const formTokens = createFormTokens(options.secret, options.baseUrl);
  registerStylesheet(app);
  registerStartPage(app);
  void app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    await scope.register(formBody, { bodyLimit: formBytesMax });
    registerInteractionPages(scope, { ...options, formTokens });
    registerAccountPages(scope, { ...options, formTokens });
  });
}
