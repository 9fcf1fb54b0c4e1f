"""requests-oauthlib's OAuth2Session with its defaults. It has no OpenID Connect: who signed in, userinfo says."""

import requests
from requests_oauthlib import OAuth2Session

from common import client_id, client_secret, finish, issuer, redirect_uri, scope, visit

metadata = requests.get(f"{issuer}/.well-known/openid-configuration", timeout=60).json()
session = OAuth2Session(client_id, redirect_uri=redirect_uri, scope=scope.split(), pkce="S256")
url, _state = session.authorization_url(metadata["authorization_endpoint"])
token = session.fetch_token(
    metadata["token_endpoint"], authorization_response=visit(url), client_secret=client_secret
)
userinfo = session.get(metadata["userinfo_endpoint"]).json()
renewed = session.refresh_token(metadata["token_endpoint"], auth=(client_id, client_secret))
api = session.get(f"{issuer}/api")
api.raise_for_status()
finish(userinfo["sub"], userinfo, renewed["access_token"] != token["access_token"], api.json())
