/**
 * Reports to the connection trace what the pages of an authorization request refuse: sign-ins, pages that the browser cannot continue, and
 * forms without a valid token. The steps do not say whose attempt it was.
 */

import type { FastifyRequest } from 'fastify';
import type { Provider } from 'oidc-provider';
import { isOwnClient } from '../clients/own_clients.ts';
import { redact, withoutQuery } from '../connections/redaction.ts';
import { stepKey } from '../connections/step.ts';
import type { ConnectionTraces } from '../connections/traces.ts';
import { lostSessionRemedy } from '../oauth/explanation.ts';

type Interaction = Awaited<ReturnType<Provider['interactionDetails']>>;

export interface RefusedPage {
  /** The step; without it, the page that the user is on. */
  name?: 'sign-in' | 'consent';
  error: string;
  explanation: string;
  /**
   * Whether the page shows the id of the request, by which each such step is found. Otherwise the connection has one step of this error,
   * however often the user tries.
   */
  showsRequest: boolean;
}

export interface SignInTrace {
  /** @param found the authorization request; undefined if there is none, which is an attempt of an unknown app */
  refused: (request: FastifyRequest, found: Interaction | undefined, refusal: RefusedPage) => void;
  /** Finds the authorization request first, on pages that do not have its cookie. Never throws. */
  refusedOf: (request: FastifyRequest, interactionUid: string | null, refusal: RefusedPage) => Promise<void>;
}

/** What oidc-provider puts into the URL of an interaction. PostgreSQL refuses some other characters. */
const interactionIdForm = /^[\w-]{1,64}$/;

export function createSignInTrace(provider: () => Provider, traces: ConnectionTraces): SignInTrace {
  function refused(request: FastifyRequest, found: Interaction | undefined, refusal: RefusedPage): void {
    const clientId = found === undefined ? null : String(found.params.client_id);
    // As in the other steps, the server's own pages are no apps that connect.
    if (clientId !== null && isOwnClient(clientId)) return;
    const { name = stepOf(found), error, explanation, showsRequest } = refusal;
    traces.add({
      name,
      outcome: 'refused',
      error,
      explanation: redact(explanation),
      requestId: request.id,
      clientId,
      isKnown: found !== undefined,
      // A page elsewhere can make a browser send a form.
      isAuthenticated: false,
      address: request.ip,
      keys: [
        stepKey('request', request.id),
        ...(found === undefined ? [] : [stepKey('interaction', found.cid)]),
      ],
      belongsTo: found === undefined || showsRequest ? 'new-or-known' : 'existing',
    });
  }

  return {
    refused,
    async refusedOf(request, interactionUid, refusal) {
      const isFindable = interactionUid !== null && interactionIdForm.test(interactionUid);
      try {
        refused(request, isFindable ? await provider().Interaction.find(interactionUid) : undefined, refusal);
      } catch (error) {
        // The page says what is wrong. Its trace is not worth an error.
        request.log.warn({ err: error }, 'refused page not traced');
      }
    },
  };
}

function stepOf(found: Interaction | undefined): 'sign-in' | 'consent' {
  return found?.prompt.name === 'consent' ? 'consent' : 'sign-in';
}

/** A rejected email address or password. */
export function refusedPassword(outcome: string): RefusedPage {
  const explanation =
    outcome === 'throttled'
      ? 'Too many attempts were made. Wait, and try again.'
      : 'The email address or the password is wrong. The user can try again.';
  return { name: 'sign-in', error: `sign-in-${outcome}`, explanation, showsRequest: false };
}

/** A page that its browser cannot continue. The sign-in may still be open in the browser that began it. */
export function lostPage(showsRequest = true): RefusedPage {
  return { error: 'sign-in-expired', explanation: lostSessionRemedy, showsRequest };
}

/** A form without the token of its page, or of another site. */
export function refusedForm({ headers }: FastifyRequest, baseUrl: string): RefusedPage {
  const { origin } = headers;
  const isOfOtherOrigin = origin !== undefined && origin !== 'null' && origin !== baseUrl;
  const explanation = isOfOtherOrigin
    ? `The browser sent the form with the origin ${withoutQuery(origin)}. Expected ${baseUrl}, the base URL of this server. Open the server at its base URL, and check NUNCIO_BASE_URL and that no proxy changes the header Origin.`
    : 'The form has no valid token of its page. The page was open while the sign-in continued in another tab or as another user, it was open for too long, or another site sent the form. Reload the page, or start again in the app, in one browser that accepts cookies.';
  return { error: 'form-token', explanation, showsRequest: true };
}
