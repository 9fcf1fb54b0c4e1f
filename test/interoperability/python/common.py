"""What both Python clients say to test/interoperability/clients.test.ts: a URL out, the redirect in, the result as JSON."""

import json
import os
import sys

issuer = os.environ["ISSUER"]
client_id = os.environ["CLIENT_ID"]
client_secret = os.environ["CLIENT_SECRET"]
redirect_uri = os.environ["REDIRECT_URI"]
scope = "openid profile email read:posts"


def visit(url):
    """Has the user sign in and allow. Returns the URL that the user was sent back to."""
    print(url, flush=True)
    return sys.stdin.readline().strip()


def finish(subject, userinfo, renewed, api):
    print(json.dumps({"subject": subject, "userinfo": userinfo, "renewed": renewed, "api": api}))
