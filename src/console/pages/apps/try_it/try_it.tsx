/**
 * Tests an app: authorization, token, first call, each with its request and response. A redirect URI cannot
 * lead to the console (the server refuses that), so the developer pastes the URL of the redirect.
 */

import { useQuery } from '@tanstack/react-query';
import { Check, ExternalLink } from 'lucide-react';
import type { ReactNode } from 'react';
import { scopesQuery } from '../../../api/apps.ts';
import type { App } from '../../../api/generated.ts';
import { Button } from '../../../ui/button.tsx';
import { CodeBlock } from '../../../ui/copy.tsx';
import { ChoiceField, SelectField, TextField } from '../../../ui/fields.tsx';
import { Card } from '../../../ui/page.tsx';
import { Notice } from '../../../ui/states.tsx';
import { useAction } from '../../../ui/use_action.ts';
import { CheckList } from '../form.tsx';
import { useShownSecret } from '../shown_secrets.ts';
import { hasSecret } from '../words.ts';
import {
  beginAuthorization,
  callApi,
  pathError,
  readAnswer,
  requestOwnToken,
  requestToken,
  showAuthorization,
} from './flow.ts';
import { type Exchange, emptyTrial, type Trial, whyNotTried } from './trial.ts';

interface TryItProps {
  app: App;
  trial: Trial;
  onChange: (trial: Trial) => void;
}

interface StepProps {
  app: App;
  trial: Trial;
  change: (part: Partial<Trial>) => void;
}

export function TryIt({ app, trial, onChange }: TryItProps) {
  const reason = whyNotTried(app);
  if (reason !== null) {
    return (
      <Notice title="This app cannot be tested here">
        <p>{reason}</p>
      </Notice>
    );
  }
  const step = { app, trial, change: (part: Partial<Trial>) => onChange({ ...trial, ...part }) };
  const isForUser = trial.mode === 'user';
  return (
    <div className="steps">
      <div className="row-between">
        <p className="soft">
          This page sends the requests that your app will send. The access that you allow is real: you can
          withdraw it in{' '}
          <a href="/account" target="_blank" rel="noopener">
            your account
          </a>
          .
        </p>
        {trial.pending !== null || trial.token !== null ? (
          <Button isSmall onPress={() => onChange({ ...emptyTrial(app), secret: trial.secret })}>
            Start over
          </Button>
        ) : null}
      </div>
      <ModeChoice {...step} />
      {isForUser && <AuthorizationStep {...step} />}
      {isForUser && trial.pending !== null && <AnswerStep {...step} />}
      {!isForUser && <OwnTokenStep {...step} />}
      {trial.accessToken !== null && <CallStep {...step} />}
    </div>
  );
}

function ModeChoice({ app, trial, change }: StepProps) {
  const { grant_types: grants } = app;
  if (!grants.includes('authorization_code') || !grants.includes('client_credentials')) return null;
  return (
    <ChoiceField
      label="Act as"
      value={trial.mode}
      onChange={(mode) => change({ ...emptyTrial(app), mode: mode as Trial['mode'], secret: trial.secret })}
      choices={[
        { id: 'user', title: 'A user', description: 'Authorization code with PKCE' },
        { id: 'app', title: 'The app', description: 'Client credentials' },
      ]}
    />
  );
}

interface StepCardProps {
  number: number;
  title: string;
  description: string;
  isDone: boolean;
  children: ReactNode;
}

function StepCard({ number, title, description, isDone, children }: StepCardProps) {
  const heading = (
    <span className="step-title">
      <span className={isDone ? 'step-number step-number-done' : 'step-number'}>
        {isDone ? <Check size={14} strokeWidth={3} aria-label="Done" role="img" /> : number}
      </span>
      {title}
    </span>
  );
  return (
    <Card title={heading} description={description}>
      <div className="stack">{children}</div>
    </Card>
  );
}

function AuthorizationStep({ app, trial, change }: StepProps) {
  const { isPending, run } = useAction();
  const begin = () =>
    run(async () => {
      const pending = await beginAuthorization(app, trial.redirectUri, trial.scopes);
      change({ pending, answer: '', token: null, accessToken: null, call: null });
    });
  return (
    <StepCard
      number={1}
      title="Authorize"
      description="Your app sends the user’s browser to the authorization endpoint."
      isDone={trial.pending !== null}
    >
      {trial.pending === null ? (
        <>
          <AuthorizationFields app={app} trial={trial} change={change} />
          <div>
            <Button
              look="primary"
              isPending={isPending}
              isDisabled={trial.scopes.length === 0}
              onPress={() => void begin()}
            >
              Create the request
            </Button>
          </div>
        </>
      ) : (
        <>
          <CodeBlock label="Authorization request" code={showAuthorization(trial.pending)} />
          <p className="soft small">
            The code challenge is the SHA-256 hash of a secret that this page keeps (PKCE). The state ties the
            response to this page.
          </p>
          <div className="row">
            <a className="button button-primary" href={trial.pending.url} target="_blank" rel="noopener">
              <ExternalLink size={16} aria-hidden /> Open in a new tab
            </a>
          </div>
        </>
      )}
    </StepCard>
  );
}

function AuthorizationFields({ app, trial, change }: StepProps) {
  const { data: scopes } = useQuery(scopesQuery);
  const words = new Map(scopes?.map(({ name, description }) => [name, description]));
  const choices = app.scope
    .split(' ')
    .filter(Boolean)
    .map((name) => ({ id: name, title: name, description: words.get(name) ?? '' }));
  return (
    <>
      {app.redirect_uris.length > 1 && (
        <SelectField
          label="Redirect URI"
          value={trial.redirectUri}
          onChange={(redirectUri) => change({ redirectUri })}
          choices={app.redirect_uris.map((uri) => ({ id: uri, title: uri }))}
        />
      )}
      <CheckList
        label="Scopes to request"
        choices={choices}
        value={trial.scopes}
        onChange={(chosen) => change({ scopes: chosen })}
      />
    </>
  );
}

/** Fills in a secret that was just created on this page. */
function useSecret({ app, trial }: Pick<StepProps, 'app' | 'trial'>): string {
  const shown = useShownSecret(app.client_id);
  return trial.secret === '' ? (shown?.value ?? '') : trial.secret;
}

function SecretField({ app, trial, change }: StepProps) {
  const shown = useShownSecret(app.client_id);
  if (!hasSecret(app.token_endpoint_auth_method)) return null;
  return (
    <TextField
      label="Client secret"
      type="password"
      autoComplete="off"
      value={trial.secret}
      onChange={(secret) => change({ secret: secret.trim() })}
      placeholder={shown === undefined ? '' : 'The secret that you just created'}
      description="Stays on this page and is sent to the token endpoint only. Lost it? Create a new one under Credentials."
    />
  );
}

function AnswerStep(step: StepProps) {
  const { app, trial, change } = step;
  const { isPending, run } = useAction();
  const secret = useSecret(step);
  const { pending } = trial;
  if (pending === null) return null;
  const answer = readAnswer(app, pending, trial.answer);
  const needsSecret = hasSecret(app.token_endpoint_auth_method) && secret === '';
  const exchange = () =>
    run(async () => {
      if (answer.code === null) return;
      const { accessToken, ...token } = await requestToken(app, secret, pending, answer.code);
      change({ token, accessToken, call: null });
    });
  return (
    <StepCard
      number={2}
      title="Exchange the code for a token"
      description="The user returns to your redirect URI with a code. It works once, within a minute."
      isDone={trial.accessToken !== null}
    >
      <TextField
        label="Address of the new tab"
        value={trial.answer}
        onChange={(text) => change({ answer: text })}
        isMono
        autoComplete="off"
        spellCheck="false"
        placeholder={`${pending.redirectUri}?code=…&state=…&iss=…`}
        description="Copy it from the address bar, even if the page there does not load. The code alone works, too."
        error={answer.error}
        good={goodAnswer(answer)}
      />
      <SecretField {...step} />
      <div>
        <Button
          look="primary"
          isPending={isPending}
          isDisabled={answer.code === null || needsSecret}
          onPress={() => void exchange()}
        >
          Exchange the code
        </Button>
      </div>
      {trial.token !== null && <ExchangeView name="Token" exchange={trial.token} />}
    </StepCard>
  );
}

function goodAnswer(answer: ReturnType<typeof readAnswer>): string | null {
  if (answer.code === null) return null;
  return answer.isChecked
    ? 'State and issuer match: this is the response to the request above.'
    : 'This is a code. Your app must also check the state and the issuer that come with it.';
}

function OwnTokenStep(step: StepProps) {
  const { app, trial, change } = step;
  const { isPending, run } = useAction();
  const secret = useSecret(step);
  const ask = () =>
    run(async () => {
      const { accessToken, ...token } = await requestOwnToken(app, secret);
      change({ token, accessToken, call: null });
    });
  return (
    <StepCard
      number={1}
      title="Get a token"
      description="The app authenticates and gets a token for itself."
      isDone={trial.accessToken !== null}
    >
      <SecretField {...step} />
      <div>
        <Button look="primary" isPending={isPending} isDisabled={secret === ''} onPress={() => void ask()}>
          Get a token
        </Button>
      </div>
      {trial.token !== null && <ExchangeView name="Token" exchange={trial.token} />}
    </StepCard>
  );
}

function CallStep({ trial, change }: StepProps) {
  const { isPending, run } = useAction();
  const { accessToken, path } = trial;
  const error = pathError(path);
  const call = () =>
    run(async () => {
      if (accessToken !== null) change({ call: await callApi(accessToken, path) });
    });
  return (
    <StepCard
      number={trial.mode === 'user' ? 3 : 2}
      title="Call the API"
      description="The access token goes into the Authorization header. It expires within minutes; use the refresh token to get a new one."
      isDone={trial.call?.isGood === true}
    >
      <TextField
        label="Path"
        value={path}
        onChange={(next) => change({ path: next })}
        isMono
        autoComplete="off"
        spellCheck="false"
        error={error}
      />
      <div>
        <Button look="primary" isPending={isPending} isDisabled={error !== null} onPress={() => void call()}>
          Send the request
        </Button>
      </div>
      {trial.call !== null && <ExchangeView name="API" exchange={trial.call} />}
    </StepCard>
  );
}

function ExchangeView({ name, exchange }: { name: string; exchange: Exchange }) {
  return (
    <div className="stack-small" role="status">
      <p className={exchange.isGood ? 'field-good' : 'field-error'}>
        {exchange.isGood ? 'It worked.' : 'The server refused the request. The response says why.'}
      </p>
      <div className="exchange">
        <CodeBlock label={`${name} request`} code={exchange.request} />
        <CodeBlock label={`${name} response`} code={exchange.response} />
      </div>
    </div>
  );
}
