"""The headers of a delivery: their names, and their values in the shapes that frameworks give them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, Union

# A mapping (of any framework), or pairs. Names and values are text or, as ASGI has them, bytes; a value can be a list.
Headers = Union[Mapping[Any, Any], Iterable[tuple[Any, Any]], Any]
FindHeader = Callable[[str], Union[str, None]]


class HeaderNames(TypedDict, total=False):
    """Names of headers that the operator has changed. ``/meta`` shows them as ``headers``."""

    event: str
    delivery: str
    signature: str
    sequence: str
    account: str


_NUNCIO: HeaderNames = {
    "event": "Nuncio-Event",
    "delivery": "Nuncio-Delivery",
    "signature": "Nuncio-Signature",
    "sequence": "Nuncio-Sequence",
    "account": "Nuncio-Account",
}
_PRESETS: dict[str, HeaderNames] = {
    "nuncio": {},
    "github": {"event": "X-GitHub-Event", "delivery": "X-GitHub-Delivery", "signature": "X-Hub-Signature-256"},
    "stripe": {"signature": "Stripe-Signature"},
}


def names_of(names: str | Mapping[str, str] | None) -> dict[str, str]:
    """Returns all names. Raises ValueError if there is no such preset."""
    changed = _PRESETS.get(names) if isinstance(names, str) else (names or {})
    if changed is None:
        raise ValueError("header_names must be nuncio, github, stripe or a mapping")
    return {**_NUNCIO, **changed}  # type: ignore[dict-item]


def header_finder(headers: Headers) -> FindHeader:
    """Returns a function that finds a header. Values of a repeated header are joined by a comma, as HTTP defines it."""
    pairs = list(headers.items() if hasattr(headers, "items") else headers or ())
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is not None:
                values.setdefault(_text(name).lower(), []).append(_text(each))

    def find(name: str) -> str | None:
        found = values.get(name.lower())
        return None if found is None else ", ".join(found)

    return find


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def from_lambda(event: Mapping[str, Any]) -> dict[str, Any]:
    """Headers and body of an AWS Lambda event: ``verify(**from_lambda(event), secret=secret)``."""
    body = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body, validate=True)
        except binascii.Error:
            pass
    return {"headers": event.get("multiValueHeaders") or event.get("headers") or {}, "body": body}
