"""Authlib's private_key_jwt with its defaults: the token endpoint is the assertion's audience."""

import os

from authlib.integrations.requests_client import OAuth2Session
from authlib.oauth2.rfc7523 import PrivateKeyJWT

from common import client_id, finish, issuer

token_endpoint = f"{issuer}/oauth/token"
session = OAuth2Session(client_id, os.environ["PRIVATE_KEY"], token_endpoint_auth_method="private_key_jwt")
session.register_client_auth_method(PrivateKeyJWT(token_endpoint))
session.fetch_token(token_endpoint, grant_type="client_credentials", scope="read:posts")
api = session.get(f"{issuer}/api")
api.raise_for_status()
finish(None, None, None, api.json())
