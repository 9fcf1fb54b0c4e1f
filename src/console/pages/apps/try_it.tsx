/** Walks through authorize, token and a first request on the page, and shows each request and answer. */

import * as oauth from 'oauth4webapi';
import { useEffect, useState } from 'react';
import type { App } from '../../api/generated.ts';
import { Button } from '../../ui/button.tsx';
import { CodeBlock } from '../../ui/copy.tsx';
import { TextField } from '../../ui/fields.tsx';
import { Card } from '../../ui/page.tsx';
import { Notice } from '../../ui/states.tsx';

interface Exchange {
  request: string;
  answer: string;
  isGood: boolean;
  json: Record<string, unknown>;
}

interface Challenge {
  verifier: string;
  state: string;
  url: string;
}

export function TryIt({ app }: { app: App }) {
  const [challenge, setChallenge] = useState<Challenge | null>(null);
  const [address, setAddress] = useState('');
  const [secret, setSecret] = useState('');
  const [token, setToken] = useState<Exchange | null>(null);
  const [call, setCall] = useState<Exchange | null>(null);
  const redirectUri = app.redirect_uris[0];
  useEffect(() => {
    if (redirectUri !== undefined) void challengeFor(app, redirectUri).then(setChallenge);
  }, [app, redirectUri]);
  if (redirectUri === undefined || !app.grant_types.includes('authorization_code')) {
    return (
      <Notice title="Nothing to walk through">
        <p>The app has no redirect URI, or may not use authorization codes. Add both in its settings.</p>
      </Notice>
    );
  }
  const code = challenge === null ? null : readCode(address, challenge.state);
  const needsSecret = app.token_endpoint_auth_method.startsWith('client_secret');
  const exchange = async () => {
    setCall(null);
    setToken(await exchangeCode(app, redirectUri, code?.code ?? '', challenge?.verifier ?? '', secret));
  };
  const accessToken = token?.isGood === true ? String(token.json.access_token) : null;
  return (
    <div className="stack-large">
      <Card title="1. Authorize" description="The user is sent to this address, signs in, and allows.">
        <div className="stack">
          {challenge !== null && (
            <CodeBlock label="Authorization request" code={`GET ${challenge.url.replaceAll('&', '\n  &')}`} />
          )}
          <div>
            <a className="button button-primary" href={challenge?.url ?? '#'} target="_blank" rel="noopener">
              Open in a new tab
            </a>
          </div>
          <TextField
            label="The address that you were sent to"
            value={address}
            onChange={setAddress}
            placeholder={`${redirectUri}?code=…&state=…`}
            description="It need not show anything: copy it out of the address bar. Its code works for 60 seconds."
            error={code?.fault}
            good={code?.code === undefined ? null : 'State and code are as they should be.'}
            isMono
          />
        </div>
      </Card>
      <Card title="2. Token" description="Your app's server exchanges the code.">
        <div className="stack">
          {needsSecret && (
            <TextField
              label="Client secret"
              type="password"
              autoComplete="off"
              value={secret}
              onChange={setSecret}
              description="It goes from this page to the token endpoint and nowhere else."
            />
          )}
          <div>
            <Button
              look="primary"
              isDisabled={code?.code === undefined || (needsSecret && secret === '')}
              onPress={exchange}
            >
              Exchange the code
            </Button>
          </div>
          {token !== null && <Shown exchange={token} label="Token" />}
        </div>
      </Card>
      <Card title="3. First request" description="Who the token speaks for, and where it can go.">
        <div className="stack">
          <div>
            <Button
              look="primary"
              isDisabled={accessToken === null}
              onPress={async () => setCall(await callApi(accessToken ?? ''))}
            >
              GET /api
            </Button>
          </div>
          {call !== null && <Shown exchange={call} label="API" />}
        </div>
      </Card>
    </div>
  );
}

function Shown({ exchange, label }: { exchange: Exchange; label: string }) {
  return (
    <div className="grid-2" role="status">
      <CodeBlock label={`${label} request`} code={exchange.request} />
      <CodeBlock label={`${label} answer`} code={exchange.answer} />
    </div>
  );
}

async function challengeFor(app: App, redirectUri: string): Promise<Challenge> {
  const verifier = oauth.generateRandomCodeVerifier();
  const state = oauth.generateRandomState();
  const url = new URL('/oauth/authorize', location.origin);
  url.search = new URLSearchParams({
    response_type: 'code',
    client_id: app.client_id,
    redirect_uri: redirectUri,
    scope: app.scope,
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  }).toString();
  return { verifier, state, url: url.href };
}

function readCode(address: string, state: string): { code?: string; fault: string | null } {
  if (address.trim() === '') return { fault: null };
  const parameters = URL.parse(address.trim())?.searchParams;
  if (parameters === undefined) return { fault: 'This is not an address.' };
  const error = parameters.get('error');
  if (error !== null) return { fault: `${error}: ${parameters.get('error_description') ?? 'not allowed'}` };
  if (parameters.get('state') !== state) return { fault: 'The state is not the one that was sent.' };
  const code = parameters.get('code');
  return code === null ? { fault: 'There is no code in it.' } : { code, fault: null };
}

async function exchangeCode(
  app: App,
  redirectUri: string,
  code: string,
  verifier: string,
  secret: string,
): Promise<Exchange> {
  const form = new URLSearchParams({
    grant_type: 'authorization_code',
    code,
    redirect_uri: redirectUri,
    code_verifier: verifier,
  });
  const headers: Record<string, string> = { 'content-type': 'application/x-www-form-urlencoded' };
  if (app.token_endpoint_auth_method === 'client_secret_basic') {
    headers.authorization = `Basic ${btoa(`${formEncode(app.client_id)}:${formEncode(secret)}`)}`;
  } else {
    form.set('client_id', app.client_id);
    if (app.token_endpoint_auth_method === 'client_secret_post') form.set('client_secret', secret);
  }
  const response = await fetch('/oauth/token', { method: 'POST', headers, body: form, credentials: 'omit' });
  const shown = new URLSearchParams(form);
  if (shown.has('client_secret')) shown.set('client_secret', '***');
  const head = headers.authorization === undefined ? '' : 'Authorization: Basic ***\n';
  const request = `POST /oauth/token\n${head}Content-Type: ${headers['content-type']}\n\n${shown.toString().replaceAll('&', '\n&')}`;
  return readExchange(request, response);
}

/** RFC 6749 section 2.3.1. */
function formEncode(text: string): string {
  return new URLSearchParams([['', text]]).toString().slice(1);
}

async function callApi(token: string): Promise<Exchange> {
  const response = await fetch('/api', {
    headers: { authorization: `Bearer ${token}` },
    credentials: 'omit',
  });
  return readExchange(`GET /api\nAuthorization: Bearer ${token.slice(0, 12)}…`, response);
}

async function readExchange(request: string, response: Response): Promise<Exchange> {
  const json = (await response.json().catch(() => ({}))) as Record<string, unknown>;
  const answer = `${response.status} ${response.statusText}\n\n${JSON.stringify(json, null, 2)}`;
  return { request, answer, isGood: response.ok, json };
}
