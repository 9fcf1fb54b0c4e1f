/**
 * Sample code for each kind of app. A test runs the code of `openid-client` and curl
 * against a real server.
 */

import type { App } from '../../api/generated.ts';
import { deviceGrant } from './device_grant.ts';

export interface SampleCode {
  title: string;
  /** The command that installs the library. */
  install: string;
  code: string;
}

export function samplesFor(app: App, issuer: string): SampleCode[] {
  const { token_endpoint_auth_method: method } = app;
  const facts = factsOf(app, issuer);
  const samples = [
    { title: 'openid-client', install: 'npm install openid-client', code: openidClient(facts) },
  ];
  if (!['none', 'client_secret_basic', 'client_secret_post'].includes(method)) return samples;
  return [
    ...samples,
    { title: 'Authlib', install: 'pip install authlib requests', code: authlib(facts) },
    { title: 'Go', install: 'go get golang.org/x/oauth2', code: go(facts) },
    { title: 'curl', install: 'sh', code: curl(facts) },
  ];
}

interface Facts {
  issuer: string;
  id: string;
  redirectUri: string;
  scope: string;
  method: string;
  usesCode: boolean;
  usesDevice: boolean;
}

function factsOf(app: App, issuer: string): Facts {
  return {
    issuer,
    id: app.client_id,
    redirectUri: app.redirect_uris[0] ?? '',
    scope: app.scope,
    method: app.token_endpoint_auth_method,
    usesCode: app.grant_types.includes('authorization_code'),
    usesDevice: app.grant_types.includes(deviceGrant),
  };
}

/** A string literal for JavaScript, Go, Python and JSON. */
function quote(text: string): string {
  return JSON.stringify(text);
}

/** A JavaScript string literal with single quotes. */
function single(text: string): string {
  return `'${quote(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`;
}

/** A quoted word for a shell. */
function word(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

const nodeAuthentication: Readonly<Record<string, string>> = {
  none: 'client.None()',
  client_secret_basic: 'client.ClientSecretBasic(env.CLIENT_SECRET)',
  client_secret_post: 'client.ClientSecretPost(env.CLIENT_SECRET)',
  private_key_jwt: 'client.PrivateKeyJwt(privateKey)',
};

function openidClient({ issuer, id, redirectUri, scope, method, usesCode, usesDevice }: Facts): string {
  const isPlain = issuer.startsWith('http:');
  const imports = method.startsWith('client_secret_') ? `import { env } from 'node:process';\n` : '';
  const privateKey =
    method === 'private_key_jwt' ? '// privateKey: your CryptoKey, whose public part is in your JWKS.\n' : '';
  const head = `${imports}import * as client from 'openid-client';

${privateKey}const config = await client.discovery(
  new URL(${single(issuer)}),
  ${single(id)},
  undefined,
  ${nodeAuthentication[method] ?? 'client.TlsClientAuth()'},${
    isPlain
      ? `
  // Plain http is for development only.
  { execute: [client.allowInsecureRequests] },`
      : ''
  }
);`;
  const call = `const response = await client.fetchProtectedResource(
  config,
  tokens.access_token,
  new URL(${single(`${issuer}/api`)}),
  'GET',
);
console.log(await response.json());`;
  if (usesCode) {
    return `${head}

// 1. Send the user here. Keep verifier and state in their session.
const verifier = client.randomPKCECodeVerifier();
const state = client.randomState();
const url = client.buildAuthorizationUrl(config, {
  redirect_uri: ${single(redirectUri)},
  scope: ${single(scope)},
  state,
  code_challenge: await client.calculatePKCECodeChallenge(verifier),
  code_challenge_method: 'S256',
});
console.log(url.href);

// 2. At the redirect URI: currentUrl is the complete URL of the redirect.
const tokens = await client.authorizationCodeGrant(config, currentUrl, {
  pkceCodeVerifier: verifier,
  expectedState: state,
});

// 3. Call the API.
${call}`;
  }
  if (usesDevice) {
    return `${head}

const device = await client.initiateDeviceAuthorization(config, { scope: ${single(scope)} });
console.log('Open', device.verification_uri, 'and type', device.user_code);
const tokens = await client.pollDeviceAuthorizationGrant(config, device);

${call}`;
  }
  return `${head}

const tokens = await client.clientCredentialsGrant(config);

${call}`;
}

function authlib({ issuer, id, redirectUri, scope, method, usesCode, usesDevice }: Facts): string {
  const secret = method === 'none' ? 'None' : 'os.environ["CLIENT_SECRET"]';
  const session = (more: string) => `import os

from authlib.common.security import generate_token
from authlib.integrations.requests_client import OAuth2Session

session = OAuth2Session(
    ${quote(id)},
    ${secret},
    token_endpoint_auth_method=${quote(method)},${more}
)`;
  const call = `print(session.get(${quote(`${issuer}/api`)}).json())`;
  if (usesCode) {
    return `${session(`
    scope=${quote(scope)},
    redirect_uri=${quote(redirectUri)},
    code_challenge_method="S256",`)}

# 1. Send the user here. Keep verifier and state in their session.
verifier = generate_token(48)
url, state = session.create_authorization_url(
    ${quote(`${issuer}/oauth/authorize`)}, code_verifier=verifier
)
print(url)

# 2. At the redirect URI: current_url is the whole address that the user came back to.
session.fetch_token(
    ${quote(`${issuer}/oauth/token`)},
    authorization_response=current_url,
    state=state,
    code_verifier=verifier,
)

# 3. Call the API.
${call}`;
  }
  if (usesDevice) return deviceAuthlib(issuer, id, scope, method);
  return `${session('')}

session.fetch_token(${quote(`${issuer}/oauth/token`)}, grant_type="client_credentials")

${call}`.replace('from authlib.common.security import generate_token\n', '');
}

function deviceAuthlib(issuer: string, id: string, scope: string, method: string): string {
  const auth = method === 'none' ? 'None' : `(${quote(id)}, os.environ["CLIENT_SECRET"])`;
  return `import os, time

import requests

auth = ${auth}
device = requests.post(
    ${quote(`${issuer}/oauth/device`)},
    auth=auth,
    data={"client_id": ${quote(id)}, "scope": ${quote(scope)}},
).json()
print("Open", device["verification_uri"], "and type", device["user_code"])

while True:
    time.sleep(device["interval"])
    token = requests.post(
        ${quote(`${issuer}/oauth/token`)},
        auth=auth,
        data={
            "grant_type": "${deviceGrant}",
            "client_id": ${quote(id)},
            "device_code": device["device_code"],
        },
    ).json()
    if "access_token" in token:
        break

headers = {"Authorization": "Bearer " + token["access_token"]}
print(requests.get(${quote(`${issuer}/api`)}, headers=headers).json())`;
}

function go(facts: Facts): string {
  const { issuer, id, redirectUri, scope, method, usesCode, usesDevice } = facts;
  const style = method === 'client_secret_basic' ? 'oauth2.AuthStyleInHeader' : 'oauth2.AuthStyleInParams';
  const scopes = scope.split(' ').filter(Boolean).map(quote).join(', ');
  if (!usesCode && !usesDevice) {
    return `conf := &clientcredentials.Config{ // golang.org/x/oauth2/clientcredentials
	ClientID:     ${quote(id)},
	ClientSecret: os.Getenv("CLIENT_SECRET"),
	TokenURL:     ${quote(`${issuer}/oauth/token`)},
	AuthStyle:    ${style},
}
response, err := conf.Client(ctx).Get(${quote(`${issuer}/api`)})`;
  }
  const secretLine = method === 'none' ? '' : '\n\tClientSecret: os.Getenv("CLIENT_SECRET"),';
  const redirectLine = usesCode ? `\n\tRedirectURL:  ${quote(redirectUri)},` : '';
  const config = `conf := &oauth2.Config{
	ClientID:     ${quote(id)},${secretLine}${redirectLine}
	Scopes:       []string{${scopes}},
	Endpoint: oauth2.Endpoint{
		AuthURL:       ${quote(`${issuer}/oauth/authorize`)},
		DeviceAuthURL: ${quote(`${issuer}/oauth/device`)},
		TokenURL:      ${quote(`${issuer}/oauth/token`)},
		AuthStyle:     ${style},
	},
}`;
  const call = `response, err := conf.Client(ctx, token).Get(${quote(`${issuer}/api`)})`;
  if (!usesCode) {
    return `${config}

device, err := conf.DeviceAuth(ctx)
fmt.Println("Open", device.VerificationURI, "and type", device.UserCode)
token, err := conf.DeviceAccessToken(ctx, device)

${call}`;
  }
  return `${config}

// 1. Send the user here. Keep verifier and state in their session.
verifier := oauth2.GenerateVerifier()
state := rand.Text() // crypto/rand
url := conf.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier))

// 2. At the redirect URI.
query := request.URL.Query()
if query.Get("state") != state || query.Get("iss") != ${quote(issuer)} {
	return errors.New("the response does not belong to this request")
}
token, err := conf.Exchange(ctx, query.Get("code"), oauth2.VerifierOption(verifier))

// 3. Call the API.
${call}`;
}

function curl({ issuer, id, redirectUri, scope, method, usesCode, usesDevice }: Facts): string {
  const authentication =
    {
      client_secret_basic: `-u ${word(id)}:"$CLIENT_SECRET"`,
      client_secret_post: `-d client_id=${word(id)} --data-urlencode client_secret="$CLIENT_SECRET"`,
    }[method] ?? `-d client_id=${word(id)}`;
  const call = `curl ${word(`${issuer}/api`)} -H "Authorization: Bearer $ACCESS_TOKEN"`;
  if (usesCode) {
    const parameters = new URLSearchParams({
      response_type: 'code',
      client_id: id,
      redirect_uri: redirectUri,
      scope,
      code_challenge_method: 'S256',
    });
    return `# 1. Open this address in a browser.
VERIFIER=$(openssl rand -hex 32)
STATE=$(openssl rand -hex 16)
CHALLENGE=$(printf %s "$VERIFIER" | openssl dgst -sha256 -binary | openssl base64 -A | tr '+/' '-_' | tr -d '=')
echo ${word(`${issuer}/oauth/authorize?${parameters}`)}"&state=$STATE&code_challenge=$CHALLENGE"

# 2. Set CODE to the code in the address that you come back to. It works for a minute.
curl ${word(`${issuer}/oauth/token`)} ${authentication} \\
  -d grant_type=authorization_code \\
  --data-urlencode redirect_uri=${word(redirectUri)} \\
  -d code="$CODE" -d code_verifier="$VERIFIER"

# 3. Set ACCESS_TOKEN to the access_token of the response.
${call}`;
  }
  if (usesDevice) {
    return `# 1. Open verification_uri of the response and type its user_code.
curl ${word(`${issuer}/oauth/device`)} ${authentication} --data-urlencode scope=${word(scope)}

# 2. Set DEVICE_CODE to its device_code. Repeat until the user has allowed it.
curl ${word(`${issuer}/oauth/token`)} ${authentication} \\
  -d grant_type=${deviceGrant} -d device_code="$DEVICE_CODE"

# 3. Set ACCESS_TOKEN to the access_token of the response.
${call}`;
  }
  return `# 1. Get a token.
curl ${word(`${issuer}/oauth/token`)} ${authentication} -d grant_type=client_credentials

# 2. Set ACCESS_TOKEN to the access_token of the response.
${call}`;
}
