"""Why a delivery is not verified or handled. Messages contain no secret and no valid signature."""

from __future__ import annotations

_STATUSES = {
    # A header of the delivery is missing.
    "missing-header": 401,
    # A header of the delivery does not have its form, occurs twice or is too long.
    "malformed-header": 401,
    # The delivery was signed longer ago than `tolerance` allows.
    "too-old": 401,
    # The delivery was signed in the future, by this machine's clock.
    "too-new": 401,
    # No secret has made the signature: it is a different secret, or the body was changed on its way.
    "no-matching-secret": 401,
    # No public key matches: it is a different deployment, or the body was changed on its way.
    "unknown-key": 401,
    # The body has more than 1 MiB.
    "body-too-large": 413,
    # Something has parsed the body before. The signature covers the bytes as they were sent.
    "body-parsed": 500,
    # There is no body.
    "no-body": 500,
    # The signature needs a secret, and none was given.
    "no-secret": 500,
    # The signature needs public keys, and none were given.
    "no-public-keys": 500,
    # A secret is not text, empty, has white space around it or, for `standard`, is not `whsec_` and base64.
    "malformed-secret": 500,
    # A public key is not `whpk_` and the base64 of 32 bytes.
    "malformed-public-key": 500,
    # The public keys could not be loaded.
    "keys-unavailable": 503,
}


class StatusError(Exception):
    """An error with a code, and the status of the response that tells the server."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.message = message


class VerificationError(StatusError):
    """The delivery is not verified. The server sends it again."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, _STATUSES[code], message)


class HandlingError(StatusError):
    """The delivery cannot be handled now. Respond with ``status``, and the server sends it again.

    ``busy`` (503): it is being handled at this moment, or another one of the same order is. ``out-of-order`` (409): a later one
    was handled before.
    """


def describe(error: StatusError) -> dict[str, str]:
    """The body of the response. The server shows it in the delivery's log."""
    return {"error": error.code, "message": error.message}
