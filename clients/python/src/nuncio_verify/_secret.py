"""Signatures by a secret: ``timestamp``, ``sha256`` and ``standard``."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator, Sequence

from ._errors import VerificationError
from ._signature import Signature, from_base64

# Bodies up to this size are examined for the reason why no secret matches.
_EXAMINED_BYTES_MAX = 300_000


def check_secrets(signature: Signature, body: bytes, secrets: Sequence[object]) -> None:
    """Raises VerificationError if none of the secrets has signed the body, or one is not a secret."""
    if not secrets:
        raise VerificationError("no-secret", f"A delivery signed with {signature.format} needs a secret.")
    keys = [_read_secret(secret, signature.format == "standard") for secret in secrets]
    if _is_other_format(signature, body) or not _is_signed(signature, body, keys):
        raise VerificationError("no-matching-secret", _reason_of(signature, body, keys))


def _is_other_format(signature: Signature, body: bytes) -> bool:
    """The body of a ``sha256`` signature could be the signed bytes of a ``timestamp`` one, which nothing would protect from
    replays. They are no JSON.
    """
    return signature.format == "sha256" and re.match(rb"[0-9]+\.(?![0-9])", body[:32]) is not None


def _read_secret(secret: object, is_encoded: bool) -> bytes:
    text = secret if isinstance(secret, str) else ""
    key = from_base64(text.removeprefix("whsec_")) if is_encoded else text.encode(errors="replace")
    if text != text.strip() or not key:
        raise VerificationError("malformed-secret", "A secret is whsec_ and base64, without spaces around it.")
    return key


def _is_signed(signature: Signature, body: bytes, keys: list[bytes]) -> bool:
    expected = [hmac.digest(key, signature.start + body, "sha256") for key in keys]
    return any(hmac.compare_digest(value, each) for value in signature.values for each in expected)


def _reason_of(signature: Signature, body: bytes, keys: list[bytes]) -> str:
    if not body:
        return "The body is empty: something has read it before."
    if any(_is_signed(signature, text.encode(), keys) for text in _rewritten(body)):
        return (
            "The body was changed: the secret matches the same JSON with other white space. Pass the bytes of the request."
        )
    return "The secret is of another subscription or was replaced, or the body was changed on its way."


def _rewritten(body: bytes) -> Iterator[str]:
    """The same JSON as other serializers write it: without spaces, and with one after each comma and colon."""
    if len(body) > _EXAMINED_BYTES_MAX:
        return
    try:
        text = body.decode()
        value = json.loads(text)
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        yield json.dumps(value, ensure_ascii=False)
        yield text.strip()
    except (ValueError, RecursionError):
        return
