"""Stores of handled deliveries: in memory, PostgreSQL or SQLite.

A row has a key, the highest position that was handled, and the claim of the one that is being handled. For ``once`` the key is a
delivery's id and the position 1; for ``in_order`` the key is that of a subscription and the position the sequence. Owns the table
``nuncio_handled``, which ``table`` renames. Libraries of other languages can share it.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from os import PathLike
from typing import Any, NamedTuple, Protocol, Union

Run = Callable[[str, Sequence[Any]], "list[Any]"]


class DeliveryStore(Protocol):
    def claim(self, key: str, position: int, token: str, lease_seconds: float) -> int | None:
        """Claims a position that is higher than the handled one, if nobody has a claim.

        Returns None if it is claimed, and otherwise the highest position that was handled.
        """

    def complete(self, key: str, position: int, token: str) -> None:
        """The claimed position is handled. Without effect if the claim has expired and another one was made."""

    def release(self, key: str, token: str) -> None:
        """Gives the claim back."""


class _Row(NamedTuple):
    position: int
    token: str | None
    until: float


class _MemoryStore:
    def __init__(self, max_keys: int) -> None:
        self._max = max_keys
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()

    def claim(self, key: str, position: int, token: str, lease_seconds: float) -> int | None:
        with self._lock:
            now = time.monotonic()
            row = self._rows.get(key, _Row(0, None, 0))
            if row.position >= position or (row.token is not None and row.until > now):
                return row.position
            self._rows.pop(key, None)
            self._rows[key] = _Row(row.position, token, now + lease_seconds)
            for oldest in list(self._rows) if len(self._rows) > self._max else ():
                if len(self._rows) <= self._max:
                    break
                if self._rows[oldest].token is None or self._rows[oldest].until <= now:
                    del self._rows[oldest]
            return None

    def complete(self, key: str, position: int, token: str) -> None:
        with self._lock:
            row = self._rows.get(key)
            if row is not None and row.token == token:
                self._rows[key] = _Row(position, None, 0)

    def release(self, key: str, token: str) -> None:
        with self._lock:
            row = self._rows.get(key)
            if row is not None and row.token == token:
                self._rows[key] = _Row(row.position, None, 0)


def memory_store(*, max_keys: int = 10_000) -> DeliveryStore:
    """A store for one process. It forgets the oldest keys beyond ``max_keys``, and everything when the process ends."""
    return _MemoryStore(max_keys)


class _SqlStore:
    def __init__(self, table: str, now: str, later: Callable[[float], Any], later_sql: str, run: Run) -> None:
        if re.fullmatch(r"[A-Za-z0-9_]{1,50}(\.[A-Za-z0-9_]{1,50})?", table) is None:
            raise ValueError("table must be a name, or a schema and a name")
        self._run = run
        self._later = later
        self._claim = (
            f"insert into {table} as handled (key, position, token, until) values (?, 0, ?, {later_sql}) "
            "on conflict (key) do update set token = excluded.token, until = excluded.until "
            f"where handled.position < ? and (handled.token is null or handled.until <= {now}) returning 1"
        )
        self._read = f"select position from {table} where key = ?"
        self._complete = f"update {table} set position = ?, token = null where key = ? and token = ? returning 1"
        self._release = f"update {table} set token = null where key = ? and token = ? returning 1"

    def claim(self, key: str, position: int, token: str, lease_seconds: float) -> int | None:
        if self._run(self._claim, [key, token, self._later(lease_seconds), position]):
            return None
        rows = self._run(self._read, [key])
        # A row that was deleted since was not handled.
        return int(rows[0][0]) if rows else 0

    def complete(self, key: str, position: int, token: str) -> None:
        self._run(self._complete, [position, key, token])

    def release(self, key: str, token: str) -> None:
        self._run(self._release, [key, token])


def postgres_store(connection: Any, *, table: str = "nuncio_handled") -> DeliveryStore:
    """A store in PostgreSQL.

    connection: a connection of psycopg or psycopg2, or Django's ``connection``: the store is part of its transaction, and
    the delivery is recorded if the transaction commits. Or a ``psycopg_pool.ConnectionPool``, or a function that returns a
    connection: the store commits each statement by itself.

        create table nuncio_handled (
          key text primary key, position bigint not null, token text, until timestamptz not null
        )
    """

    def run(text: str, values: Sequence[Any]) -> list[Any]:
        if hasattr(connection, "cursor"):
            return _execute(connection, text, values)
        if hasattr(connection, "getconn"):
            with connection.connection() as pooled:
                return _execute(pooled, text, values)
        with closing(connection()) as own:
            rows = _execute(own, text, values)
            own.commit()
            return rows

    now = "clock_timestamp()"
    return _SqlStore(
        table, now, lambda seconds: seconds * 1_000, f"{now} + ? * interval '1 millisecond'", run
    )


def _execute(connection: Any, text: str, values: Sequence[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text.replace("?", "%s"), values)
        return list(cursor.fetchall())


def sqlite_store(
    database: Union[str, "PathLike[str]", sqlite3.Connection], *, table: str = "nuncio_handled"
) -> DeliveryStore:
    """A store in SQLite 3.35 or later.

    database: a connection of ``sqlite3``: the store is part of its transaction. Or the path of the file: the store opens a
    connection for each statement and commits it by itself, so that threads can share the store.

        create table nuncio_handled (
          key text primary key, position integer not null, token text, until integer not null
        )
    """

    def run(text: str, values: Sequence[Any]) -> list[Any]:
        if isinstance(database, sqlite3.Connection):
            return database.execute(text, values).fetchall()
        with closing(sqlite3.connect(database, timeout=30)) as own, own:
            return own.execute(text, values).fetchall()

    now = "cast((julianday('now') - 2440587.5) * 86400000 as integer)"
    return _SqlStore(table, now, lambda seconds: round(seconds * 1_000), f"{now} + ?", run)
