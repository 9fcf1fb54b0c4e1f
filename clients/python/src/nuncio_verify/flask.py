"""Flask."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from flask import Response, current_app, jsonify, request
from werkzeug.exceptions import RequestEntityTooLarge

from ._adapters import BODY_BYTES_MAX, too_large
from ._errors import HandlingError, VerificationError, describe
from ._verify import verify


def flask_verifier(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that verifies the request. The view gets the delivery as its first argument. Options are those of ``verify``::

        @app.post("/hooks")
        @flask_verifier(secret=secret)
        def receive(delivery):
            event = request.get_json()
            return "", 204

    A HandlingError of ``once`` and ``in_order`` becomes its response.
    """

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def verified(*words: Any, **named: Any) -> Any:
            try:
                delivery = verify(headers=request.headers, body=_read(), **options)
                return current_app.ensure_sync(view)(delivery, *words, **named)
            except (VerificationError, HandlingError) as error:
                response: Response = jsonify(describe(error))
                response.status_code = error.status
                return response

        return verified

    return decorate


def _read() -> bytes:
    request.max_content_length = BODY_BYTES_MAX
    try:
        return request.get_data()
    except RequestEntityTooLarge as error:
        raise too_large() from error
