"""Verifies deliveries of a Nuncio server, and handles each of them once or in order.

The same as ``nuncio/verify`` for JavaScript: options, results and codes of errors are equal. Only ``ed25519`` needs a package,
``cryptography``. Adapters are in ``nuncio_verify.fastapi``, ``nuncio_verify.flask`` and ``nuncio_verify.django``.
"""

from ._errors import HandlingError, VerificationError
from ._handling import Handle, in_order, once
from ._headers import HeaderNames, from_lambda
from ._public_keys import PublicKeys
from ._stores import DeliveryStore, memory_store, postgres_store, sqlite_store
from ._verify import Delivery, verify

__all__ = [
    "Delivery",
    "DeliveryStore",
    "Handle",
    "HandlingError",
    "HeaderNames",
    "PublicKeys",
    "VerificationError",
    "from_lambda",
    "in_order",
    "memory_store",
    "once",
    "postgres_store",
    "sqlite_store",
    "verify",
]
