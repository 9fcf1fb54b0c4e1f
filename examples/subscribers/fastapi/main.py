"""A subscriber with FastAPI."""

import json
import os
import sqlite3
from contextlib import closing
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from nuncio_verify import Delivery, HandlingError, once, sqlite_store
from nuncio_verify.fastapi import fastapi_verifier

FILE = os.environ.get("DATABASE_FILE", "handled.sqlite")
with closing(sqlite3.connect(FILE)) as database, database:
    database.execute(
        "create table if not exists nuncio_handled"
        " (key text primary key, position integer not null, token text, until integer not null)"
    )
handle = once(sqlite_store(FILE))
verified = fastapi_verifier(secret=os.environ["WEBHOOK_SECRET"])

app = FastAPI()


@app.post("/hooks", status_code=204)
async def receive(request: Request, delivery: Annotated[Delivery, Depends(verified)]) -> None:
    event = await request.json()

    async def work(each: Delivery) -> None:
        print(f"handled {each.kind} {each.id}: {json.dumps(event, separators=(',', ':'))}", flush=True)

    if not await handle.run(delivery, work):
        print("handled before", flush=True)


# `busy` is 503: the server retries.
@app.exception_handler(HandlingError)
async def refuse(_: Request, error: HandlingError) -> JSONResponse:
    return JSONResponse({"error": error.code}, error.status)
