/** Code that connects an app, for libraries that people use. */

import type { App } from '../../api/generated.ts';

export interface ClientSample {
  language: string;
  code: string;
}

export function clientSamples(app: App, issuer: string): readonly ClientSample[] {
  const redirectUri = app.redirect_uris[0] ?? 'https://app.example.com/callback';
  const isPublic = app.token_endpoint_auth_method === 'none';
  return [
    {
      language: 'openid-client',
      code: `// npm install openid-client
import * as client from 'openid-client';

const config = await client.discovery(
  new URL('${issuer}'),
  '${app.client_id}',
  ${isPublic ? 'undefined,\n  client.None(),' : 'process.env.CLIENT_SECRET,'}
);
const verifier = client.randomPKCECodeVerifier();
const state = client.randomState();
// Keep both in the user's session, and send the user here:
const url = client.buildAuthorizationUrl(config, {
  redirect_uri: '${redirectUri}',
  scope: '${app.scope}',
  code_challenge: await client.calculatePKCECodeChallenge(verifier),
  code_challenge_method: 'S256',
  state,
});

// The user comes back to the redirect URI:
const tokens = await client.authorizationCodeGrant(config, currentUrl, {
  pkceCodeVerifier: verifier,
  expectedState: state,
});
const answer = await client.fetchProtectedResource(config, tokens.access_token, new URL('${issuer}/api'), 'GET');`,
    },
    {
      language: 'Authlib',
      code: `# pip install authlib flask requests
from authlib.integrations.flask_client import OAuth

oauth = OAuth(app)
oauth.register(
    "nuncio",
    client_id="${app.client_id}",
    ${isPublic ? '' : 'client_secret=os.environ["CLIENT_SECRET"],\n    '}server_metadata_url="${issuer}/.well-known/oauth-authorization-server",
    client_kwargs={"scope": "${app.scope}", "code_challenge_method": "S256"},
)

@app.route("/connect")
def connect():
    return oauth.nuncio.authorize_redirect("${redirectUri}")

@app.route("/callback")
def callback():
    token = oauth.nuncio.authorize_access_token()
    return oauth.nuncio.get("${issuer}/api", token=token).json()`,
    },
    {
      language: 'Go',
      code: `import "golang.org/x/oauth2"

config := &oauth2.Config{
	ClientID:     "${app.client_id}",
	${isPublic ? '' : 'ClientSecret: os.Getenv("CLIENT_SECRET"),\n	'}RedirectURL:  "${redirectUri}",
	Scopes:       []string{${app.scope
    .split(' ')
    .map((scope) => `"${scope}"`)
    .join(', ')}},
	Endpoint: oauth2.Endpoint{
		AuthURL:  "${issuer}/oauth/authorize",
		TokenURL: "${issuer}/oauth/token",
	},
}
verifier := oauth2.GenerateVerifier()
// Keep verifier and state in the user's session, and send the user here:
url := config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier))

// The user comes back to the redirect URI with state and code:
token, err := config.Exchange(ctx, code, oauth2.VerifierOption(verifier))
answer, err := config.Client(ctx, token).Get("${issuer}/api")`,
    },
    {
      language: 'curl',
      code: `VERIFIER=$(openssl rand -base64 32 | tr '+/' '-_' | tr -d '=')
CHALLENGE=$(printf %s "$VERIFIER" | openssl dgst -sha256 -binary | openssl base64 | tr '+/' '-_' | tr -d '=')

# Open this in a browser, allow, and take the code out of the address you are sent to:
echo "${issuer}/oauth/authorize?response_type=code&client_id=${app.client_id}&redirect_uri=${encodeURIComponent(redirectUri)}&scope=${encodeURIComponent(app.scope)}&code_challenge=$CHALLENGE&code_challenge_method=S256"

curl ${isPublic ? `-d client_id=${app.client_id}` : `-u "${app.client_id}:$CLIENT_SECRET"`} ${issuer}/oauth/token \\
  -d grant_type=authorization_code -d code="$CODE" \\
  -d redirect_uri=${redirectUri} -d code_verifier="$VERIFIER"

curl -H "Authorization: Bearer $ACCESS_TOKEN" ${issuer}/api`,
    },
  ];
}
