"""What the adapters share."""

from ._errors import VerificationError

BODY_BYTES_MAX = 1_048_576


def too_large() -> VerificationError:
    return VerificationError("body-too-large", f"The body has more than {BODY_BYTES_MAX} bytes.")
