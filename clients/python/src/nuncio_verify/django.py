"""Django."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import RawPostDataException
from django.views.decorators.csrf import csrf_exempt

from ._adapters import BODY_BYTES_MAX, too_large
from ._errors import HandlingError, VerificationError, describe
from ._verify import Delivery, verify


def django_verifier(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that verifies the request. The view gets the delivery as its second argument. Options are those of ``verify``::

        @django_verifier(secret=secret)
        def receive(request, delivery):
            event = json.loads(request.body)
            return HttpResponse(status=204)

    A HandlingError of ``once`` and ``in_order`` becomes its response. The view needs no CSRF token.
    """

    def check(request: HttpRequest) -> Delivery:
        return verify(headers=request.headers, body=_read(request), **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def verified(request: HttpRequest, *words: Any, **named: Any) -> Any:
            try:
                return view(request, check(request), *words, **named)
            except (VerificationError, HandlingError) as error:
                return _refuse(error)

        @wraps(view)
        async def verified_async(request: HttpRequest, *words: Any, **named: Any) -> Any:
            try:
                delivery = await asyncio.to_thread(check, request)
                return await view(request, delivery, *words, **named)
            except (VerificationError, HandlingError) as error:
                return _refuse(error)

        chosen: Callable[..., Any] = csrf_exempt(verified_async if asyncio.iscoroutinefunction(view) else verified)
        return chosen

    return decorate


def _refuse(error: VerificationError | HandlingError) -> HttpResponse:
    return JsonResponse(describe(error), status=error.status)


def _read(request: HttpRequest) -> bytes:
    try:
        body: bytes = request.body
    except RequestDataTooBig as error:
        raise too_large() from error
    except RawPostDataException as error:
        raise VerificationError(
            "body-parsed", "The body was read before. Add the verifier before code that reads request.POST."
        ) from error
    if len(body) > BODY_BYTES_MAX:
        raise too_large()
    return body
