/** The pages of a sign-in with an upstream provider: buttons, forms and error pages. */

import type { UpstreamProvider } from '../../accounts/upstream/provider_settings.ts';
import type { UpstreamError, UpstreamErrorCode } from '../../accounts/upstream/upstream_client.ts';
import { type Html, html } from '../../http/html.ts';
import { reference } from '../error_page.ts';
import { formTokenField } from '../form_token.ts';
import { inMinutes, type SignInFailure, signInFields, signInMessage } from '../sign_in_form.ts';

/** One button for each provider. @param action the URL of the form; null for the page's own URL */
export function providerButtons(
  providers: readonly UpstreamProvider[],
  token: string,
  action: string | null,
): Html | false {
  return (
    providers.length > 0 &&
    html`<form class="providers" method="post" ${action !== null && html`action="${action}"`}>
<input type="hidden" name="${formTokenField}" value="${token}">
<input type="hidden" name="action" value="upstream">
${providers.map(
  ({ id, name }) =>
    html`<button class="secondary" type="submit" name="provider" value="${id}">Continue with ${name}</button>`,
)}
</form>
<p class="divider soft small">or</p>`
  );
}

export interface UnknownIdentity {
  token: string;
  provider: string;
  label: string;
  mayCreate: boolean;
  /** The email address of the identity, if an account here has it. */
  takenEmail: string | null;
  failure: Partial<SignInFailure>;
  /** The page that the sign-in began on. */
  back: string;
}

/** Shown when no account is connected to the identity. The user signs in to an account or creates one. */
export function unknownIdentityContent(shown: UnknownIdentity): Html {
  const { provider, label, token, mayCreate, takenEmail, failure, back } = shown;
  return html`<h1>${mayCreate ? 'Create an account?' : 'Connect your account'}</h1>
<p>You are signed in to ${provider} as <strong>${label}</strong>. No account here is connected to it yet.</p>
${
  mayCreate &&
  html`<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
<button type="submit" name="action" value="create">Create an account</button>
</form>
<h2>Already have an account?</h2>`
}
<p>${takenEmail !== null && html`There is an account with the address ${takenEmail}. `}Sign in to your account with your password
once. After that, you can sign in with ${provider}.</p>
${signInMessage(failure.message)}
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
${signInFields(failure.email ?? takenEmail ?? '', failure.message)}
<button ${mayCreate && html`class="secondary"`} type="submit" name="action" value="connect">Sign in and connect</button>
</form>
${!mayCreate && html`<p class="soft small">If you have no account or password here, contact the operator of this service.</p>`}
<p><a href="${back}">Sign in another way</a></p>`;
}

export interface ConnectConfirmation {
  token: string;
  provider: string;
  label: string;
  /** The address or name of the signed-in account. */
  account: string;
  hasPassword: boolean;
  failure: Partial<SignInFailure>;
}

/** Confirms the identity before it is connected, because another user can be signed in at the provider in this browser. */
export function connectContent({
  token,
  provider,
  label,
  account,
  hasPassword,
  failure,
}: ConnectConfirmation): Html {
  return html`<h1>Connect ${provider}?</h1>
<p>You are signed in to ${provider} as <strong>${label}</strong>. Anyone who can sign in there as this user will be able to sign
in to your account <strong>${account}</strong> here.</p>
${signInMessage(failure.message)}
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
${
  hasPassword &&
  html`<label for="password">Password of this account</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus
${failure.message !== undefined && html`aria-describedby="error"`}>`
}
<button type="submit" name="action" value="connect">Connect ${provider}</button>
</form>
<p><a href="/account">Cancel</a></p>`;
}

interface ErrorPage {
  status: number;
  title: string;
  content: Html;
}

/** @param back the page that the sign-in began on */
export function errorPage(
  error: UpstreamError,
  provider: string,
  back: string,
  requestId: string,
): ErrorPage {
  const { code } = error;
  const title = titles[code] ?? `${provider} did not sign you in`;
  const retryLink = html`<p><a href="${back}">Try again, or sign in another way</a></p>`;
  const content = html`<h1>${title}</h1>
<p>${errorMessages[code](provider, error)}</p>
${retryLink}
${titles[code] === undefined && reference(`upstream-${code}`, requestId)}`;
  return { status: statuses[code] ?? 400, title, content };
}

const statuses: Partial<Record<UpstreamErrorCode, number>> = { unavailable: 503, throttled: 429 };

/** Titles of pages that explain themselves. The others have a reference. */
const titles: Partial<Record<UpstreamErrorCode, string>> = {
  cancelled: 'You are not signed in',
  throttled: 'Too many attempts',
};

const errorMessages: Record<UpstreamErrorCode, (provider: string, error: UpstreamError) => string> = {
  unavailable: (provider) => `${provider} cannot be reached at the moment. Try again in a few minutes.`,
  cancelled: (provider) => `You cancelled the sign-in at ${provider}.`,
  refused: (provider) =>
    `${provider} refused the sign-in. If it happens again, contact the operator of this service.`,
  invalid: (provider) =>
    `The response from ${provider} could not be verified. If it happens again, contact the operator of this service.`,
  throttled: (provider, { retryAfterSeconds }) =>
    `Too many sign-ins with ${provider} from your network failed. Try again in ${inMinutes(retryAfterSeconds)}, or sign in another way.`,
};

/** Shown when a verified identity cannot sign in. */
export function refusalContent(
  outcome: 'disabled' | 'too-many' | 'of-another-account' | 'too-old',
  provider: string,
  back: string,
  isConnecting = false,
): Html {
  const messages = {
    disabled: 'The account is disabled. Contact the operator of this service.',
    'too-many': 'Too many sign-ins are connected to this account. Disconnect one on your account page first.',
    'of-another-account': `Another account here is connected to this ${provider} account. Disconnect it there first.`,
    'too-old': `The app requires a new sign-in, and ${provider} does not confirm that you have just signed in.`,
  };
  return html`<h1>${isConnecting ? 'Not connected' : 'You are not signed in'}</h1>
<p class="error" role="alert">${messages[outcome]}</p>
<p><a href="${back}">${isConnecting ? 'Go to your account' : 'Sign in another way'}</a></p>`;
}

export const unfinishedContent = html`<h1>This sign-in cannot be finished</h1>
<p>A sign-in works once, within ten minutes, and only in the browser where it began.</p>
<p>Go back to the app that you want to connect, and start again in the same browser.</p>
<p><a href="/account">Go to your account</a></p>`;

export const tooManyContent = html`<h1>Too many attempts</h1>
<p>This request has begun too many sign-ins. Go back to the app that you want to connect, and start again there.</p>`;
