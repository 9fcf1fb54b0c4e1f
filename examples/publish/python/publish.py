"""Publishes from Python in the transaction of a change: DATABASE_URL in the environment, `python publish.py <user id>`."""

import os
import sys

import psycopg
from psycopg.types.json import Jsonb


def pay(connection: psycopg.Connection, user: str, invoice: str, cents: int) -> str:
    """Call it in a transaction. Returns the event's id."""
    connection.execute(
        "insert into invoices (id, customer, cents) values (%s, %s, %s)", (invoice, user, cents)
    )
    body = {"invoice": {"id": invoice, "amount": cents, "currency": "EUR"}}
    row = connection.execute(
        "select nuncio.publish(%s, %s, %s)", ("invoice.paid", user, Jsonb(body))
    ).fetchone()
    return row[0]


with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    user = sys.argv[1]
    with connection.transaction():
        print("published", pay(connection, user, "python-1", 1200))
    try:
        with connection.transaction():
            pay(connection, user, "python-1", 1200)  # the same invoice again
    except psycopg.errors.UniqueViolation:
        print("rolled back")
    # Many events in one statement.
    bodies = [
        {"invoice": {"id": f"python-{number}", "amount": 100, "currency": "EUR"}}
        for number in range(2, 102)
    ]
    with connection.transaction():
        connection.execute(
            "select nuncio.publish('invoice.paid', %s, body) from unnest(%s::jsonb[]) as body",
            (user, [Jsonb(body) for body in bodies]),
        )
    print("published", len(bodies))
