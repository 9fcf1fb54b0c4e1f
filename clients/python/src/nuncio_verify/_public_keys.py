"""Signatures by the deployment's key: ``ed25519``. ``/meta`` shows the public keys, also some that do not sign yet or any more.

Keys from a URL or a function are kept for five minutes, and loaded again when none of them matches, at most once in 30 seconds.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from ._errors import VerificationError
from ._signature import Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# What `/meta` responds with, its `public_keys`, one key (`whpk_…`), the URL of `/meta`, or a function that loads keys.
PublicKeys = Union[str, Mapping[str, Any], Sequence[Any], Callable[[], Any]]

# Keys that were loaded longer ago are loaded again.
_FRESH_SECONDS = 300
# The least time between the starts of two loads.
_PAUSE_SECONDS = 30
# Keys that were loaded longer ago are not used, also if they cannot be loaded again.
_KEPT_SECONDS = 86_400
_FETCH_TIMEOUT_SECONDS = 5
_RESPONSE_BYTES_MAX = 65_536
# The most URLs and functions whose keys are kept.
_LOADERS_MAX = 100

_KEY = re.compile(r"whpk_([A-Za-z0-9+/]{43}=)")


def check_public_keys(signature: Signature, body: bytes, source: PublicKeys | None) -> None:
    """Raises VerificationError if none of the keys has signed the body."""
    if source is None:
        raise VerificationError("no-public-keys", "A delivery signed with ed25519 needs public_keys: those of /meta.")
    loader = _loader_of(source)
    keys = _parse_keys(source) if loader is None else loader.current()
    if _is_signed(signature, body, keys):
        return
    renewed = keys if loader is None else loader.renewed()
    if renewed is not keys and _is_signed(signature, body, renewed):
        return
    raise VerificationError(
        "unknown-key", "No public key matches: it is of another server, or the body was changed on its way."
    )


def _is_signed(signature: Signature, body: bytes, keys: list[Ed25519PublicKey]) -> bool:
    from cryptography.exceptions import InvalidSignature

    for key in keys:
        for value in signature.values:
            try:
                key.verify(value, signature.start + body)
                return True
            except InvalidSignature:
                pass
    return False


def _parse_keys(source: Any) -> list[Ed25519PublicKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise ImportError("ed25519 needs the package cryptography: install nuncio-verify[ed25519]") from error
    listed = source.get("public_keys", source) if isinstance(source, Mapping) else source
    keys = []
    for each in listed if isinstance(listed, (list, tuple)) else [listed]:
        text = each.get("key") if isinstance(each, Mapping) else each
        match = _KEY.fullmatch(str(text))
        if match is None:
            raise VerificationError(
                "malformed-public-key", "A public key is whpk_ and the base64 of 32 bytes, as public_keys of /meta has it."
            )
        keys.append(Ed25519PublicKey.from_public_bytes(base64.b64decode(match[1])))
    return keys


class _KeyLoader:
    """none → loading → kept → loading (old, or none matches) → kept"""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._keys: list[Ed25519PublicKey] | None = None
        self._loaded_at = 0.0
        self._tried_at: float | None = None
        self._failure: Exception | None = None

    def current(self) -> list[Ed25519PublicKey]:
        """Keys that are fresh, if they could be loaded."""
        keys = self._keys
        return keys if keys is not None and _age_of(self._loaded_at) < _FRESH_SECONDS else self.renewed()

    def renewed(self) -> list[Ed25519PublicKey]:
        """Keys that are loaded now, unless the last load was just before."""
        # Others wait for the load that has begun.
        with self._lock:
            if self._tried_at is None or _age_of(self._tried_at) >= _PAUSE_SECONDS:
                self._tried_at = time.monotonic()
                try:
                    self._keys = _parse_keys(self._load())
                    self._loaded_at = time.monotonic()
                except ImportError:
                    raise
                except Exception as error:
                    self._failure = error
            if self._keys is not None and _age_of(self._loaded_at) < _KEPT_SECONDS:
                return self._keys
            failure = self._failure
        raise VerificationError("keys-unavailable", f"The public keys could not be loaded: {failure}") from failure


def _age_of(since: float) -> float:
    return time.monotonic() - since


_loaders: dict[Any, _KeyLoader] = {}


def _loader_of(source: PublicKeys) -> _KeyLoader | None:
    """Returns None if the source has the keys themselves."""
    if isinstance(source, str):
        if not source.startswith(("http:", "https:")):
            return None
        url = source

        def load() -> Any:
            return _fetch_json(url)
    elif callable(source):
        load = source
    else:
        return None
    known = _loaders.get(source)
    if known is None:
        if len(_loaders) >= _LOADERS_MAX:
            _loaders.clear()
        known = _loaders.setdefault(source, _KeyLoader(load))
    return known


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _fetch_json(url: str) -> Any:
    address = urllib.parse.urlsplit(url)
    if address.scheme != "https" and address.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError("the URL must begin with https://")
    opener = urllib.request.build_opener(_NoRedirect)
    deadline = time.monotonic() + _FETCH_TIMEOUT_SECONDS
    with opener.open(url, timeout=_FETCH_TIMEOUT_SECONDS) as response:
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        text = b""
        while chunk := response.read1(_RESPONSE_BYTES_MAX):
            text += chunk
            if len(text) > _RESPONSE_BYTES_MAX:
                raise ValueError(f"more than {_RESPONSE_BYTES_MAX} bytes")
            # The timeout of the socket begins again with each byte.
            if time.monotonic() > deadline:
                raise TimeoutError("the response took too long")
    return json.loads(text)
