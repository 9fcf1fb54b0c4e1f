"""Verifies one delivery."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ._errors import VerificationError
from ._headers import Headers, header_finder, names_of
from ._public_keys import PublicKeys, check_public_keys
from ._secret import check_secrets
from ._signature import SEQUENCE, read_header, read_signature

_HOW_TO_GET_THE_BODY = (
    "Pass the bytes of the request. FastAPI: await request.body(). Flask: request.get_data(). Django: request.body."
)


@dataclass(frozen=True)
class Delivery:
    """A verified delivery. Signatures cover the body and, for ``standard`` and ``ed25519``, ``id`` and ``timestamp``."""

    id: str
    """The same at every attempt. Handle each id once."""
    kind: str
    """The kind of the event."""
    sequence: int
    """1, 2, 3 … for each subscription."""
    timestamp: int | None
    """When the attempt was signed, as Unix time in seconds; None for ``sha256``, which does not say it."""
    account: str | None
    """The id of the account that the event belongs to; None if it belongs to none."""


def verify(
    *,
    headers: Headers,
    body: bytes | bytearray | memoryview | str,
    secret: str | None = None,
    secrets: Sequence[str] = (),
    public_keys: PublicKeys | None = None,
    tolerance: float = 300,
    header_names: str | Mapping[str, str] | None = None,
) -> Delivery:
    """Verifies a delivery.

    headers: the headers of the request, a mapping or pairs. The case of names does not matter.
    body: the body as it was sent, not a parsed object.
    secret, secrets: the subscription's secret (``whsec_…``), or several, of which one must match.
    public_keys: for ``ed25519``: what ``/meta`` shows, its URL, or a function that loads it.
    tolerance: how far the time of the signature may be from this machine's clock, in seconds.
    header_names: the names of headers, if the operator has changed them: ``headers`` of ``/meta``, ``"github"`` or ``"stripe"``.

    Raises VerificationError if the delivery is not verified; its ``code`` says why. Raises TypeError or ValueError if an option
    is invalid.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)):
        raise TypeError("tolerance must be a number of seconds")
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError("tolerance must be a number of seconds")
    if isinstance(secrets, str):
        raise TypeError("secrets must be a list")
    names = names_of(header_names)
    content = _to_bytes(body)
    find = header_finder(headers)
    signature = read_signature(find, names, public_keys is not None)
    if signature.timestamp is not None:
        _check_age(signature.timestamp, tolerance)
    if signature.format == "ed25519":
        check_public_keys(signature, content, public_keys)
    else:
        check_secrets(signature, content, [*([] if secret is None else [secret]), *secrets])
    return Delivery(
        id=signature.id,
        kind=read_header(find, names["event"]),
        sequence=int(read_header(find, names["sequence"], SEQUENCE)),
        timestamp=signature.timestamp,
        account=None if find(names["account"]) is None else read_header(find, names["account"]),
    )


def _to_bytes(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode(errors="replace")
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    if body is None:
        raise VerificationError("no-body", f"There is no body. {_HOW_TO_GET_THE_BODY}")
    raise VerificationError("body-parsed", f"The body was parsed before. {_HOW_TO_GET_THE_BODY}")


def _check_age(timestamp: int, tolerance: float) -> None:
    age = time.time() - timestamp
    if abs(age) <= tolerance:
        return
    code, words = ("too-old", "ago") if age > 0 else ("too-new", "in the future")
    raise VerificationError(
        code, f"The delivery was signed {round(abs(age))} seconds {words}, by this machine's clock."
    )
