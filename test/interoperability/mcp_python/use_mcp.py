"""Uses the endpoint for agents with the Python SDK of the Model Context Protocol, which knows nothing but the URL.

It registers itself and signs the user in: it prints the URL to open, as JSON on a line, and reads the URL that the user was sent back to
from its input. At the end it prints what it got.
"""

import asyncio
import json
import sys
from urllib.parse import parse_qs, urlsplit

from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

REDIRECT_URI = "http://127.0.0.1:7777/callback"


class MemoryStorage:
    tokens: OAuthToken | None = None
    client_info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client_info = client_info


async def open_browser(url: str) -> None:
    print(json.dumps({"open": url}), flush=True)


async def wait_for_callback() -> AuthorizationCodeResult:
    line = await asyncio.to_thread(sys.stdin.readline)
    query = {name: values[0] for name, values in parse_qs(urlsplit(line.strip()).query).items()}
    return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))


async def main(url: str, mode: str) -> None:
    auth = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(client_name="A Python agent", redirect_uris=[REDIRECT_URI]),
        storage=MemoryStorage(),
        redirect_handler=open_browser,
        callback_handler=wait_for_callback,
    )
    async with create_mcp_http_client(auth=auth) as http_client:
        async with Client(streamable_http_client(url, http_client=http_client), mode=mode) as client:
            tools = await client.list_tools()
            created = await client.call_tool("article_create", {"title": "Written in Python"})
            refused = await client.call_tool("article_create", {})
            print(
                json.dumps(
                    {
                        "version": client.protocol_version,
                        "tools": [tool.name for tool in tools.tools],
                        "title": created.structured_content["title"],
                        "refused": [refused.is_error, refused.content[0].text],
                    }
                )
            )


asyncio.run(main(sys.argv[1], sys.argv[2]))
