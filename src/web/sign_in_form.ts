/** The fields and error messages of sign-in forms. */

import type { FastifyReply } from 'fastify';
import type { SignIn } from '../accounts/sign_in.ts';
import { type Html, html } from '../http/html.ts';

/** Why a form is shown again. */
export interface SignInFailure {
  message: string;
  /** HTTP status of the page. */
  status: number;
  email: string;
}

/** Maximum length of an address (RFC 5321 section 4.5.3.1.3). */
const emailLengthMax = 254;

/**
 * The fields of the form. The first empty one has the focus.
 * @param given as an app or a form sent it. What is too long for an address is not shown
 */
export function signInFields(given: string, message: string | undefined): Html {
  const email = given.length > emailLengthMax ? '' : given;
  const described = message !== undefined && html`aria-describedby="error"`;
  return html`<label for="email">Email address</label>
<input id="email" name="email" type="email" autocomplete="username" maxlength="${emailLengthMax}" required value="${email}"
${email === '' && html`autofocus`} ${described}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required
${email !== '' && html`autofocus`} ${described}>`;
}

export function signInMessage(message: string | undefined): Html | false {
  return message !== undefined && html`<p class="error" role="alert" id="error">${message}</p>`;
}

/** The response to a failed attempt. Sets `Retry-After` where attempts are limited. */
export function signInFailure(
  result: Exclude<SignIn, { outcome: 'signed-in' }>,
  email: string,
  reply: FastifyReply,
): SignInFailure {
  if (result.outcome === 'refused') {
    return { message: 'Incorrect email address or password.', status: 422, email };
  }
  reply.header('retry-after', String(result.retryAfterSeconds));
  const message = `Too many attempts. Try again in ${inMinutes(result.retryAfterSeconds)}.`;
  return { message, status: 429, email };
}

/** A number of minutes in words, rounded up. */
export function inMinutes(seconds: number): string {
  const minutes = Math.ceil(seconds / 60);
  return `${minutes} ${minutes === 1 ? 'minute' : 'minutes'}`;
}
