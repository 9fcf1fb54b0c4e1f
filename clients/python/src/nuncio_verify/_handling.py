"""Handles each delivery once, or in the order of the sequence. A delivery is claimed in a store by one conditional statement:

    unknown → claimed → handled              the handler has returned
              claimed → unknown              the handler has raised; the server's retry is handled
              claimed → claimed              the process died, and the claim has expired
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ._errors import HandlingError
from ._stores import DeliveryStore
from ._verify import Delivery

D = TypeVar("D", bound=Delivery)

_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3})-([0-9a-f]{12})")


class Handle:
    """Runs handlers: ``handle(delivery, handler)``, or ``await handle.run(delivery, handler)`` for a coroutine function."""

    def __init__(
        self, store: DeliveryStore, place_of: Callable[[Delivery], tuple[str, int]], lease_seconds: float
    ) -> None:
        self._store = store
        self._place_of = place_of
        self._lease_seconds = lease_seconds

    def __call__(self, delivery: D, handler: Callable[[D], object]) -> bool:
        """Runs the handler, unless the delivery was handled before.

        Returns whether the handler has run. Raises HandlingError if the delivery cannot be handled now, and what the handler
        raises.
        """
        key, position = self._place_of(delivery)
        token = str(uuid.uuid4())
        if not _is_new(self._store.claim(key, position, token, self._lease_seconds), position):
            return False
        try:
            handler(delivery)
        except BaseException:
            # If this fails too, such as in a transaction that is aborted, the claim expires.
            with contextlib.suppress(Exception):
                self._store.release(key, token)
            raise
        self._store.complete(key, position, token)
        return True

    async def run(self, delivery: D, handler: Callable[[D], Awaitable[object]]) -> bool:
        """The same for a coroutine function. The store runs in another thread."""
        key, position = self._place_of(delivery)
        token = str(uuid.uuid4())
        handled = await asyncio.to_thread(self._store.claim, key, position, token, self._lease_seconds)
        if not _is_new(handled, position):
            return False
        try:
            await handler(delivery)
        except BaseException:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self._store.release, key, token)
            raise
        await asyncio.to_thread(self._store.complete, key, position, token)
        return True


def once(store: DeliveryStore, *, lease_seconds: float = 60) -> Handle:
    """Handles each delivery id once.

    lease_seconds: how long a claim is valid. A delivery whose process has died is handled again after this time. It must be
    longer than any handler takes.
    """
    return Handle(store, lambda delivery: (delivery.id, 1), lease_seconds)


def in_order(store: DeliveryStore, *, lease_seconds: float = 60) -> Handle:
    """Handles the deliveries of a subscription that is ``ordered`` by their sequence: each of them once, one at a time, and none
    after a later one. Different subscriptions can share a store.
    """
    return Handle(store, _lane_of, lease_seconds)


def _lane_of(delivery: Delivery) -> tuple[str, int]:
    # The last group of an id is its sequence, and the others are those of its subscription. After a failover of the server's
    # database they differ, and the sequence may go back.
    match = _ID.fullmatch(delivery.id)
    if match is None or int(match[2], 16) != delivery.sequence:
        raise ValueError("the id of the delivery does not have its sequence")
    return match[1], delivery.sequence


def _is_new(handled: int | None, position: int) -> bool:
    if handled is None:
        return True
    if handled == position:
        return False
    if handled > position:
        raise HandlingError("out-of-order", 409, "A later delivery was handled before.")
    raise HandlingError("busy", 503, "A delivery is being handled at this moment.")
