"""What no schema can say, told to Schemathesis: each exception names the problem's code and the reason."""

import json
import os
import uuid

import schemathesis
from schemathesis.checks import CHECKS
from schemathesis.specs.openapi.checks import positive_data_acceptance as builtin_acceptance

USED_KEYS = set()
# The account and the grant of the token: it takes ids from responses, and would end its own session.
OWN_IDS = set(os.environ.get("NUNCIO_OWN_IDS", "").split())

STATE = {
    # If-Match and its like ask about the resource as it is now.
    "precondition-failed",
    # A cursor is opaque and belongs to one list in one order.
    "invalid-cursor",
    # Which hosts and ports are public is known at the moment of the request.
    "url_address",
    "url_port",
    "url_invalid",
    # The length counts in the URL's normal form.
    "url_length",
    # How many digits a number may have; JSON Schema knows no such limit.
    "inexact-number",
    # Which headers' names are the deployment's own, and which headers a subscription has.
    "header-refused",
    "header-value-required",
    "too-many-headers",
    # Which members of `auth` belong to its type, and what the deployment has.
    "auth-refused",
    "auth-required-again",
    # Whether the server of a URL echoes a challenge, and how often one may ask.
    "handshake-failed",
    "rate-limited",
    # Whether a filter fits the schemas of the subscription's kinds.
    "invalid-filter",
    "invalid-filter-path",
    "unknown-filter-path",
    "filter-type-mismatch",
    "filter-too-large",
    "filter-kind",
    # What a subscription without a URL cannot have.
    "pull-only",
    # One end of a stretch of time follows from the other, or from the present.
    "invalid-range",
    # Which accounts there are, and which ids of events were used for another event.
    "unknown-account",
    # Which origins users are sent back to is the operator's to say.
    "return-to-not-allowed",
    # Each external id of a list is there once.
    "duplicate",
    # RFC 7591: what an app says of itself must fit together (grants, methods, keys, addresses).
    "invalid-client-metadata",
    "invalid-redirect-uri",
    # Parameters that are each right and do not go together.
    "parameters-exclude-each-other",
    "id-reused",
}


@schemathesis.hook
def before_call(context, case, kwargs):
    """A client uses each key for one request; Schemathesis repeats its first example."""
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and key in USED_KEYS and 1 <= len(key) <= 255:
        case.headers["Idempotency-Key"] = str(uuid.uuid4())
    elif isinstance(key, str):
        USED_KEYS.add(key)
    parameters = case.path_parameters or {}
    if case.method.upper() != "GET" and parameters.get("id") in OWN_IDS:
        parameters["id"] = str(uuid.uuid4())


CHECKS.unregister(builtin_acceptance.__name__)


@schemathesis.check
def positive_data_acceptance(ctx, response, case):
    if response.status_code in (400, 412, 422, 429) and is_matter_of_state(response, case):
        return None
    return builtin_acceptance(ctx, response, case)


def is_matter_of_state(response, case):
    problem = json.loads(response.text)
    if problem.get("code") in STATE:
        return True
    if response.status_code != 422:
        return False
    # Whether the places of a JSON Patch exist, and whether its result fits, depends on what it is applied to.
    if case.media_type == "application/json-patch+json":
        return True
    # So does what a merge patch leaves missing in an object that was not there before.
    merges = ("application/merge-patch+json", "application/json")
    errors = problem.get("errors", [])
    return (
        case.method.upper() == "PATCH"
        and case.media_type in merges
        and errors != []
        and all(error["message"] == "is required" for error in errors)
    )
