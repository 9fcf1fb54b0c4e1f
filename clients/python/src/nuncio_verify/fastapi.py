"""FastAPI, and other frameworks on Starlette."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from ._adapters import BODY_BYTES_MAX, too_large
from ._errors import VerificationError, describe
from ._verify import Delivery, verify


def fastapi_verifier(**options: Any) -> Callable[[Request], Awaitable[Delivery]]:
    """A dependency that verifies the request and returns its delivery. Options are those of ``verify``::

        verified = fastapi_verifier(secret=secret)

        @app.post("/hooks", status_code=204)
        async def receive(request: Request, delivery: Annotated[Delivery, Depends(verified)]) -> None:
            event = await request.json()
    """

    async def dependency(request: Request) -> Delivery:
        try:
            body = await _read(request)
            # Public keys may be loaded, which takes time.
            if options.get("public_keys") is None:
                return verify(headers=request.headers, body=body, **options)
            return await run_in_threadpool(verify, headers=request.headers, body=body, **options)
        except VerificationError as error:
            raise HTTPException(error.status, describe(error)) from error

    return dependency


async def _read(request: Request) -> bytes:
    """Reads a body to its end, so that the response arrives, but keeps none that is too large."""
    if not hasattr(request, "_body"):
        body, length = bytearray(), 0
        async for chunk in request.stream():
            length += len(chunk)
            if length <= BODY_BYTES_MAX:
                body += chunk
        if length > BODY_BYTES_MAX:
            raise too_large()
        # Where Starlette itself keeps a body that was read, so that the endpoint can read it again.
        request._body = bytes(body)
    return await request.body()
