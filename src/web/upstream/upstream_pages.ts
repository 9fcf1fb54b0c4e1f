/** What users read of a sign-in with an upstream provider: buttons, questions, and what to do where it fails. */

import type { UpstreamProvider } from '../../accounts/upstream/provider_settings.ts';
import type { UpstreamFault } from '../../accounts/upstream/upstream_client.ts';
import { reference } from '../error_page.ts';
import { formTokenField } from '../form_token.ts';
import { type Html, html } from '../html.ts';
import { type SignInFault, signInFields, signInMessage } from '../sign_in_form.ts';

/** A button for each provider. @param action where the form goes; the page itself where left out */
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
  /** The address of the identity, where an account here has it. */
  takenEmail: string | null;
  fault: Partial<SignInFault>;
  /** The page that the sign-in began on. */
  back: string;
}

/** Nobody has this identity yet: its user signs in to the account that they have, or creates one. */
export function unknownIdentityContent(shown: UnknownIdentity): Html {
  const { provider, label, token, mayCreate, takenEmail, fault, back } = shown;
  return html`<h1>${mayCreate ? 'Create an account?' : 'Connect your account'}</h1>
<p>You are signed in to ${provider} as <strong>${label}</strong>. No account here is connected to that yet.</p>
${
  mayCreate &&
  html`<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
<button type="submit" name="action" value="create">Create an account</button>
</form>
<h2>Do you have an account already?</h2>`
}
<p>${takenEmail !== null && html`There is an account with the address ${takenEmail}. `}Sign in to your account once with your
password. From then on ${provider} signs you in to it.</p>
${signInMessage(fault.message)}
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
${signInFields(fault.email ?? takenEmail ?? '', fault.message)}
<button ${mayCreate && html`class="secondary"`} type="submit" name="action" value="connect">Sign in and connect</button>
</form>
${!mayCreate && html`<p class="soft small">If you have no account or password here, ask the people who run this service.</p>`}
<p><a href="${back}">Sign in another way</a></p>`;
}

export interface ConnectQuestion {
  token: string;
  provider: string;
  label: string;
  /** Whose page it is. */
  account: string;
  hasPassword: boolean;
  fault: Partial<SignInFault>;
}

/** Shown before an identity is connected: somebody else may be signed in at the provider in this browser. */
export function connectContent({
  token,
  provider,
  label,
  account,
  hasPassword,
  fault,
}: ConnectQuestion): Html {
  return html`<h1>Connect ${provider}?</h1>
<p>You are signed in to ${provider} as <strong>${label}</strong>. Whoever can sign in there as that user can then sign in to
your account <strong>${account}</strong> here.</p>
${signInMessage(fault.message)}
<form method="post">
<input type="hidden" name="${formTokenField}" value="${token}">
${
  hasPassword &&
  html`<label for="password">Your password here</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus
${fault.message !== undefined && html`aria-describedby="fault"`}>`
}
<button type="submit" name="action" value="connect">Connect ${provider}</button>
</form>
<p><a href="/account">Cancel</a></p>`;
}

interface FaultPage {
  status: number;
  title: string;
  content: Html;
}

/** @param back the page that the sign-in began on */
export function faultPage(
  fault: UpstreamFault,
  provider: string,
  back: string,
  requestId: string,
): FaultPage {
  const title = fault === 'cancelled' ? 'You are not signed in' : `${provider} did not sign you in`;
  const again = html`<p><a href="${back}">Try again, or sign in another way</a></p>`;
  const content = html`<h1>${title}</h1>
<p>${faultSentences[fault](provider)}</p>
${again}
${fault !== 'cancelled' && reference(`upstream-${fault}`, requestId)}`;
  return { status: fault === 'unavailable' ? 503 : 400, title, content };
}

const faultSentences: Record<UpstreamFault, (provider: string) => string> = {
  unavailable: (provider) => `${provider} cannot be reached at the moment. Try again in a few minutes.`,
  cancelled: (provider) => `You cancelled the sign-in at ${provider}. Nothing was changed.`,
  refused: (provider) =>
    `${provider} refused the sign-in. If it happens again, tell the people who run this service.`,
  invalid: (provider) =>
    `The response from ${provider} could not be verified. If it happens again, tell the people who run this service.`,
};

/** Why a verified identity signs in to nothing. */
export function refusalContent(
  outcome: 'disabled' | 'too-many' | 'of-another-account' | 'too-old',
  provider: string,
  back: string,
): Html {
  const sentences = {
    disabled: 'The account is disabled. Ask the people who run this service.',
    'too-many': `The account has too many sign-ins connected. Disconnect one at your account page first.`,
    'of-another-account': `Another account here is connected to this sign-in with ${provider}. Disconnect it there first.`,
    'too-old': `The app asks for a new sign-in, and ${provider} does not confirm that you have just signed in.`,
  };
  return html`<h1>You are not signed in</h1>
<p class="error" role="alert">${sentences[outcome]}</p>
<p><a href="${back}">Sign in another way</a></p>`;
}

export const unfinishedContent = html`<h1>This sign-in cannot be finished</h1>
<p>A sign-in works once, for ten minutes, and in the browser where it began.</p>
<p>Go back to the app that you want to connect, and start again there. Use one browser from the beginning to the end.</p>
<p><a href="/account">Go to your account</a></p>`;

export const tooManyContent = html`<h1>Too many tries</h1>
<p>This request began too many sign-ins. Go back to the app that you want to connect, and start again there.</p>`;
