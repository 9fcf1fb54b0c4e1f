/**
 * Prints the configuration of a test plan of the OpenID conformance suite: the actions of its scripted browser on the
 * pages of Nuncio, completed with the facts of one run. README.md describes the facts.
 *
 *   node test/interoperability/oidf/configuration.ts openid|fapi2 < facts.json
 */

import { readFileSync } from 'node:fs';

interface Facts {
  /** Origins of Nuncio and of the suite, without a trailing slash. */
  op: string;
  suite: string;
  email: string;
  password: string;
  /** All other facts are copied into the plan unchanged: `alias`, `client`, `client2`, `mtls`, `resource` … */
  [member: string]: unknown;
}

/** The actions of the suite's browser on one page. An optional task is skipped at other addresses. */
interface Task {
  task: string;
  match: string;
  optional?: boolean;
  commands?: (string | number)[][];
}

interface Visit {
  match: string;
  'match-limit'?: number;
  tasks: Task[];
}

type Visits = { browser: Visit[] };

const errorHeading = 'Something went wrong';
const signedOutHeading = 'You are signed out';

/** Waits for a text and saves the page for the reviewer of the results. */
function keepPage(text: string, isOptional = false): (string | number)[] {
  return ['wait', 'xpath', '//*', 10, text, `update-image-placeholder${isOptional ? '-optional' : ''}`];
}

function tasksFor({ op, suite, email, password }: Facts) {
  const interaction = `${op}/interaction*`;
  const signIn = [
    ['text', 'name', 'email', email, 'optional'],
    ['text', 'name', 'password', password, 'optional'],
    ['click', 'css', 'button[value=login]', 'optional'],
  ];
  const login = { task: 'Sign in', match: interaction, optional: true, commands: signIn };
  const consent = {
    task: 'Allow',
    match: interaction,
    optional: true,
    commands: [['click', 'css', 'button[value=allow]', 'optional']],
  };
  /** Apps that registered themselves get a link if the user has not interacted yet. */
  const leave = {
    task: 'Continue to the app',
    match: `${op}/oauth/*`,
    optional: true,
    commands: [['click', 'css', 'a.button', 'optional']],
  };
  const arrive = {
    task: 'Arrive',
    match: `${suite}/test/*`,
    commands: [['wait', 'id', 'submission_complete', 20]],
  };
  const signOut = {
    task: 'Sign out',
    match: `${op}/oauth/logout*`,
    optional: true,
    commands: [['click', 'css', 'button[name=logout]', 'optional']],
  };
  return { signIn, login, consent, leave, arrive, signOut };
}

function openid(facts: Facts): Visits & { override: Record<string, Visits> } {
  const { op, suite } = facts;
  const { signIn, login, consent, leave, arrive, signOut } = tasksFor(facts);
  const authorize = (...tasks: Task[]): Visit => ({ match: `${op}/oauth/authorize*`, tasks });
  const authorization = authorize(leave, login, consent, arrive);
  const logout = (last: Task): Visit => ({ match: `${op}/oauth/logout*`, tasks: [signOut, last] });
  const page = (text: string): Task => ({ task: text, match: `${op}/*`, commands: [keepPage(text)] });

  const secondLogin = {
    browser: [
      { ...authorization, 'match-limit': 1 },
      authorize({ ...login, commands: [keepPage('Sign in', true), ...signIn] }, consent, arrive),
    ],
  };
  const errorPage = { browser: [authorize(page(errorHeading))] };
  const consentPage = { browser: [authorize(login, { ...page('Connect'), match: `${op}/interaction*` })] };
  const loggedOut = (text: string) => ({ browser: [authorization, logout(page(text))] });
  return {
    browser: [authorization, logout({ task: 'Arrive', match: `${suite}/test/*` })],
    override: {
      'oidcc-prompt-login': secondLogin,
      'oidcc-max-age-1': secondLogin,
      'oidcc-ensure-registered-redirect-uri': errorPage,
      'oidcc-ensure-redirect-uri-in-authorization-request': errorPage,
      'oidcc-redirect-uri-query-mismatch': errorPage,
      'oidcc-redirect-uri-query-added': errorPage,
      'oidcc-registration-logo-uri': consentPage,
      'oidcc-registration-policy-uri': consentPage,
      'oidcc-registration-tos-uri': consentPage,
      'oidcc-rp-initiated-logout-bad-post-logout-redirect-uri': loggedOut(errorHeading),
      'oidcc-rp-initiated-logout-query-added-to-post-logout-redirect-uri': loggedOut(errorHeading),
      'oidcc-rp-initiated-logout-modified-id-token-hint': loggedOut(errorHeading),
      'oidcc-rp-initiated-logout-bad-id-token-hint': loggedOut(errorHeading),
      'oidcc-rp-initiated-logout-no-id-token-hint': loggedOut(signedOutHeading),
      'oidcc-rp-initiated-logout-no-params': loggedOut(signedOutHeading),
      'oidcc-rp-initiated-logout-no-post-logout-redirect-uri': loggedOut(signedOutHeading),
      'oidcc-rp-initiated-logout-only-state': loggedOut(signedOutHeading),
    },
  };
}

function fapi2(facts: Facts): Visits & { override: Record<string, Visits> } {
  const { op } = facts;
  const { login, consent, arrive } = tasksFor(facts);
  const authorize = (...tasks: Task[]): Visit => ({ match: `${op}/oauth/authorize*`, tasks });
  const authorization = authorize(
    login,
    consent,
    {
      task: 'Error page',
      match: `${op}/oauth/authorize*`,
      optional: true,
      commands: [keepPage(errorHeading, true)],
    },
    { ...arrive, optional: true },
  );
  const interaction = { match: `${op}/interaction*` };
  const deny = { ...interaction, task: 'Cancel', commands: [['click', 'css', 'button[value=deny]']] };
  const look = { ...interaction, task: 'Look only', commands: [keepPage('Sign in', true)] };
  const prefix = 'fapi2-security-profile-final';
  return {
    browser: [authorization],
    override: {
      [`${prefix}-user-rejects-authentication`]: { browser: [authorize(deny, arrive)] },
      [`${prefix}-par-ensure-reused-request-uri-prior-to-auth-completion-succeeds`]: {
        browser: [{ ...authorize(look), 'match-limit': 1 }, authorization],
      },
    },
  };
}

const kinds = { openid, fapi2 } as const;

function main(kind = ''): void {
  if (kind !== 'openid' && kind !== 'fapi2') {
    process.stderr.write(
      'usage: node test/interoperability/oidf/configuration.ts openid|fapi2 < facts.json\n',
    );
    process.exitCode = 2;
    return;
  }
  const facts = JSON.parse(readFileSync(0, 'utf8')) as Facts;
  const { op, suite, email, password, ...plan } = facts;
  const server = { discoveryUrl: `${op}/.well-known/openid-configuration`, login_hint: email };
  process.stdout.write(`${JSON.stringify({ ...plan, server, ...kinds[kind](facts) }, null, 2)}\n`);
}

main(process.argv[2]);
