"""Reads the signature of a delivery. Its headers say which format it has:

    timestamp   Nuncio-Signature: t=<unix seconds>,v1=<hex>,v1=<hex>        HMAC-SHA256 of "<t>.<body>"
    sha256      Nuncio-Signature: sha256=<hex>                              HMAC-SHA256 of the body
    standard    webhook-signature: v1,<base64> v1,<base64>                  HMAC-SHA256 of "<id>.<t>.<body>"
    ed25519     webhook-signature: v1a,<base64>                             Ed25519 of "<id>.<t>.<body>"
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import NamedTuple

from ._errors import VerificationError
from ._headers import FindHeader

# The longest value of a header. The server's longest one has a few hundred characters.
_VALUE_LENGTH_MAX = 4_096
# The most values that are read. The server writes one for each live secret or key.
_VALUES_MAX = 16

# Visible ASCII without a comma, which would join two values.
_IDENTIFIER = re.compile(r"[!-+\--~]{1,255}")
_SECONDS = re.compile(r"[0-9]{1,12}")
SEQUENCE = re.compile(r"[0-9]{1,15}")
_HEX = re.compile(r"([0-9a-f]{2})+")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


class Signature(NamedTuple):
    format: str
    """``timestamp``, ``sha256``, ``standard`` or ``ed25519``."""
    id: str
    """The delivery's id."""
    timestamp: int | None
    """Unix time in seconds; None for ``sha256``, which has none."""
    start: bytes
    """What is signed before the body."""
    values: list[bytes]
    """The values of the signature. Each is of another secret or key."""


def read_header(find: FindHeader, name: str, form: re.Pattern[str] | None = _IDENTIFIER) -> str:
    value = find(name)
    if value is None:
        raise VerificationError(
            "missing-header",
            f"The request has no header {name}. It is no delivery, or the operator has renamed the header "
            "(option header_names).",
        )
    if len(value) > _VALUE_LENGTH_MAX or (form is not None and form.fullmatch(value) is None):
        raise _malformed(name)
    return value


def read_signature(find: FindHeader, names: dict[str, str], has_keys: bool) -> Signature:
    """has_keys: the subscriber has public keys, and so expects ``ed25519`` where a delivery has values of both forms."""
    if find("webhook-signature") is None:
        return _read_own(find, names)
    return _read_standard(find, has_keys)


def _read_standard(find: FindHeader, has_keys: bool) -> Signature:
    id = read_header(find, "webhook-id")
    timestamp = read_header(find, "webhook-timestamp", _SECONDS)
    parts = read_header(find, "webhook-signature", None).split(" ")
    hashed, signed = _values_of(parts, "v1,"), _values_of(parts, "v1a,")
    is_signed = bool(signed) and (has_keys or not hashed)
    return Signature(
        "ed25519" if is_signed else "standard",
        id,
        int(timestamp),
        f"{id}.{timestamp}.".encode(),
        _decode("webhook-signature", signed if is_signed else hashed, from_base64),
    )


def _read_own(find: FindHeader, names: dict[str, str]) -> Signature:
    name = names["signature"]
    parts = [part.strip() for part in read_header(find, name, None).split(",")]
    id = read_header(find, names["delivery"])
    hashes = _values_of(parts, "sha256=")
    times = _values_of(parts, "t=")
    if hashes:
        if len(parts) > 1:
            raise _malformed(name)
        return Signature("sha256", id, None, b"", _decode(name, hashes, _from_hex))
    if len(times) != 1 or _SECONDS.fullmatch(times[0]) is None:
        raise _malformed(name)
    values = _decode(name, _values_of(parts, "v1="), _from_hex)
    return Signature("timestamp", id, int(times[0]), f"{times[0]}.".encode(), values)


def _values_of(parts: list[str], start: str) -> list[str]:
    return [part[len(start) :] for part in parts if part.startswith(start)]


def _decode(name: str, values: list[str], decode_one: Callable[[str], bytes | None]) -> list[bytes]:
    """Leaves out values of another form, because others may match."""
    if not 0 < len(values) <= _VALUES_MAX:
        raise _malformed(name)
    return [value for value in map(decode_one, values) if value is not None]


def _from_hex(text: str) -> bytes | None:
    return bytes.fromhex(text) if _HEX.fullmatch(text) else None


def from_base64(text: str) -> bytes | None:
    """Returns the bytes, or None if the text is not base64. Padding can be left out."""
    bare = text.rstrip("=")
    is_padded = bare == text or len(text) % 4 == 0
    if _BASE64.fullmatch(text) is None or not is_padded or len(bare) % 4 == 1:
        return None
    return base64.b64decode(bare + "=" * (-len(bare) % 4))


def _malformed(name: str) -> VerificationError:
    return VerificationError("malformed-header", f"The header {name} does not have the form of a delivery's.")
