"""Handling once and in order, with each store. PostgreSQL needs DATABASE_URL, a database where tables can be created."""

import asyncio
import os
import sqlite3
import tempfile
import threading
import time
import unittest
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from nuncio_verify import (
    Delivery,
    DeliveryStore,
    HandlingError,
    in_order,
    memory_store,
    once,
    postgres_store,
    sqlite_store,
)

LANE = "5b0c7a41-9e2d-8f3a-8c41"
SQLITE = "create table {} (key text primary key, position integer not null, token text, until integer not null)"
POSTGRES = "create table {} (key text primary key, position bigint not null, token text, until timestamptz not null)"


def delivery(sequence: int, lane: str = LANE) -> Delivery:
    return Delivery(f"{lane}-{sequence:012x}", "push", sequence, None, None)


def fail(_: Delivery) -> None:
    raise RuntimeError("failed")


class Handling(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def stores(self) -> Iterator[tuple[str, DeliveryStore]]:
        yield "memory", memory_store()
        file = Path(self.folder.name) / "app.sqlite"
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(SQLITE.format("nuncio_handled"))
        yield "sqlite, a file", sqlite_store(file)
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.addCleanup(connection.close)
        connection.execute(SQLITE.format("own"))
        yield "sqlite, a connection", sqlite_store(connection, table="own")
        url = os.environ.get("DATABASE_URL")
        if url is None:
            print("no DATABASE_URL: PostgreSQL is left out")
            return
        import psycopg

        table = f"handled_{uuid.uuid4().hex}"
        connect = lambda: psycopg.connect(url)  # noqa: E731
        with connect() as setup:
            setup.execute(POSTGRES.format(table))
        yield "postgres, a function", postgres_store(connect, table=table)
        own = psycopg.connect(url, autocommit=True)
        self.addCleanup(own.close)
        yield "postgres, a connection", postgres_store(own, table=f"public.{table}_2")

    def each(self) -> Iterator[tuple[str, DeliveryStore]]:
        for name, store in self.stores():
            if name == "postgres, a connection":
                import psycopg

                with psycopg.connect(os.environ["DATABASE_URL"]) as setup:
                    setup.execute(POSTGRES.format(store._claim.split()[2]))  # type: ignore[attr-defined]
            with self.subTest(name):
                yield name, store

    def test_once_runs_each_id_once_and_again_after_a_failure(self) -> None:
        for _, store in self.each():
            handle, handled = once(store), []
            with self.assertRaises(RuntimeError):
                handle(delivery(1), fail)
            self.assertTrue(handle(delivery(1), handled.append))
            self.assertFalse(handle(delivery(1), handled.append))
            self.assertTrue(handle(delivery(2), handled.append))
            self.assertEqual(handled, [delivery(1), delivery(2)])

    def test_a_duplicate_is_busy_while_the_first_one_runs(self) -> None:
        for _, store in self.each():
            handle, seen = once(store), []

            def during(each: Delivery) -> None:
                with self.assertRaises(HandlingError) as caught:
                    handle(each, fail)
                seen.append((caught.exception.code, caught.exception.status))

            self.assertTrue(handle(delivery(1), during))
            self.assertEqual(seen, [("busy", 503)])

    def test_a_claim_expires_and_its_late_end_has_no_effect(self) -> None:
        for _, store in self.each():
            handle, handled = once(store, lease_seconds=0.2), []

            def slow(each: Delivery) -> None:
                time.sleep(0.5)
                self.assertTrue(once(store)(each, handled.append))

            self.assertTrue(handle(delivery(1), slow))
            self.assertEqual(len(handled), 1)
            self.assertFalse(handle(delivery(1), fail))

    def test_in_order_refuses_what_is_earlier(self) -> None:
        for _, store in self.each():
            handle, handled = in_order(store), []
            for sequence in (1, 2, 2, 4):
                handle(delivery(sequence), lambda each: handled.append(each.sequence))
            self.assertEqual(handled, [1, 2, 4])
            with self.assertRaises(HandlingError) as caught:
                handle(delivery(3), fail)
            self.assertEqual((caught.exception.code, caught.exception.status), ("out-of-order", 409))
            self.assertTrue(handle(delivery(1, "5b0c7a41-9e2d-8f3a-8c42"), handled.append))
            with self.assertRaises(ValueError):
                handle(Delivery("other", "push", 1, None, None), fail)

    def test_of_concurrent_duplicates_one_runs(self) -> None:
        for name, store in self.each():
            if name.endswith("a connection"):
                continue
            handle, handled, codes = once(store), [], []

            def attempt() -> None:
                try:
                    handle(delivery(1), lambda each: (time.sleep(0.05), handled.append(each)))
                except HandlingError as error:
                    codes.append(error.code)

            threads = [threading.Thread(target=attempt) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(handled), 1, codes)
            self.assertEqual(set(codes) - {"busy"}, set())

    def test_coroutines_are_handled_once(self) -> None:
        for _, store in self.each():
            handle, handled = once(store), []

            async def work(each: Delivery) -> None:
                await asyncio.sleep(0)
                handled.append(each)

            async def work_twice() -> list[bool]:
                return [await handle.run(delivery(1), work), await handle.run(delivery(1), work)]

            self.assertEqual(asyncio.run(work_twice()), [True, False])
            self.assertEqual(len(handled), 1)

    def test_a_transaction_that_is_rolled_back_forgets_the_delivery(self) -> None:
        connection = sqlite3.connect(":memory:")
        self.addCleanup(connection.close)
        connection.execute(SQLITE.format("nuncio_handled"))
        handle = once(sqlite_store(connection))
        self.assertTrue(handle(delivery(1), lambda _: None))
        connection.rollback()
        self.assertTrue(handle(delivery(1), lambda _: None))
        connection.commit()
        self.assertFalse(handle(delivery(1), fail))

    def test_the_memory_forgets_the_oldest_but_no_claim(self) -> None:
        handle = once(memory_store(max_keys=2))

        def inner(_: Delivery) -> None:
            for sequence in range(2, 8):
                handle(delivery(sequence), lambda _: None)
            with self.assertRaises(HandlingError):
                handle(delivery(1), fail)

        handle(delivery(1), inner)
        self.assertTrue(handle(delivery(2), lambda _: None))

    def test_a_name_of_a_table_is_checked(self) -> None:
        for table in ("a; drop table b", "", "a.b.c", "é"):
            with self.assertRaises(ValueError):
                sqlite_store(":memory:", table=table)


if __name__ == "__main__":
    unittest.main()
