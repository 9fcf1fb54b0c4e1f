"""Authlib's OAuth2Session with its defaults, and an id_token checked with joserfc."""

from authlib.common.security import generate_token
from authlib.integrations.requests_client import OAuth2Session
from joserfc import jwt
from joserfc.jwk import KeySet

from common import client_id, client_secret, finish, issuer, redirect_uri, scope, visit

session = OAuth2Session(
    client_id, client_secret, scope=scope, redirect_uri=redirect_uri, code_challenge_method="S256"
)
metadata = session.request("GET", f"{issuer}/.well-known/openid-configuration", withhold_token=True).json()
verifier = generate_token(48)
url, state = session.create_authorization_url(
    metadata["authorization_endpoint"], code_verifier=verifier, nonce="a-nonce"
)
token = session.fetch_token(
    metadata["token_endpoint"], authorization_response=visit(url), code_verifier=verifier, state=state
)
keys = KeySet.import_key_set(session.request("GET", metadata["jwks_uri"], withhold_token=True).json())
claims = jwt.decode(token["id_token"], keys, algorithms=["RS256", "ES256"]).claims
jwt.JWTClaimsRegistry(
    iss={"essential": True, "value": issuer},
    aud={"essential": True, "value": client_id},
    nonce={"essential": True, "value": "a-nonce"},
).validate(claims)
userinfo = session.get(metadata["userinfo_endpoint"]).json()
renewed = session.refresh_token(metadata["token_endpoint"], refresh_token=token["refresh_token"])
api = session.get(f"{issuer}/api")
api.raise_for_status()
finish(claims["sub"], userinfo, renewed["access_token"] != token["access_token"], api.json())
