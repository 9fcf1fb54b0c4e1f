"""What the vectors cannot say: options, shapes of Python, reasons, and public keys that are loaded."""

import hashlib
import hmac
import json
import threading
import time
import unittest
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock

from test_vectors import CASES

from nuncio_verify import VerificationError, from_lambda, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EXAMPLE = next(case for case in CASES if case["name"] == "ed25519: the published example")


def signed(body: str, age: float = 0) -> dict[str, Any]:
    at = int(time.time() - age)
    digest = hmac.new(SECRET.encode(), f"{at}.{body}".encode(), hashlib.sha256).hexdigest()
    headers = {
        "Nuncio-Event": "push",
        "Nuncio-Sequence": "7",
        "Nuncio-Delivery": "5b0c7a41-9e2d-8f3a-8c41-000000000007",
        "Nuncio-Signature": f"t={at},v1={digest}",
    }
    return {"headers": headers, "body": body, "secret": SECRET}


def code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except VerificationError as error:
        return error.code
    return "verified"


class Options(unittest.TestCase):
    def test_tolerance_limits_the_age_in_both_directions(self) -> None:
        for age, tolerance, code in [
            (240, 300, "verified"),
            (-240, 300, "verified"),
            (302, 300, "too-old"),
            (-330, 300, "too-new"),
            (5, 0, "too-old"),
        ]:
            self.assertEqual(code_of(lambda: verify(**signed("{}", age), tolerance=tolerance)), code)
        for wrong in [float("nan"), float("inf"), -1, "300", None, True]:
            with self.assertRaises((TypeError, ValueError)):
                verify(**signed("{}"), tolerance=wrong)

    def test_an_unknown_preset_and_a_text_of_secrets_are_refused(self) -> None:
        with self.assertRaises(ValueError):
            verify(**signed("{}"), header_names="gitlab")
        with self.assertRaises(TypeError):
            verify(**{**signed("{}"), "secret": None}, secrets=SECRET)

    def test_headers_and_bodies_of_python_are_read(self) -> None:
        given = signed('{"a":1}')
        message = Message()
        for name, value in given["headers"].items():
            message[name] = value
        asgi = [(name.lower().encode(), value.encode()) for name, value in given["headers"].items()]
        for headers in (message, asgi, given["headers"].items()):
            self.assertEqual(verify(**{**given, "headers": headers}).sequence, 7)
        for body in (b'{"a":1}', bytearray(b'{"a":1}'), memoryview(b'{"a":1}')):
            self.assertEqual(verify(**{**given, "body": body}).kind, "push")
        event = {"headers": given["headers"], "body": "eyJhIjoxfQ==", "isBase64Encoded": True}
        self.assertEqual(verify(**from_lambda(event), secret=SECRET).kind, "push")

    def test_a_secret_that_is_no_text_is_malformed(self) -> None:
        for secret in (b"whsec_x", 7, ["whsec_x"]):
            self.assertEqual(code_of(lambda: verify(**{**signed("{}"), "secret": secret})), "malformed-secret")

    def test_the_reason_says_that_json_was_serialized_again(self) -> None:
        value = {"name": "Zoë", "list": [1, {"a": "x, y: z"}]}
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        with self.assertRaisesRegex(VerificationError, "other white space"):
            verify(**{**signed(compact), "body": json.dumps(value)})
        with self.assertRaisesRegex(VerificationError, "another subscription"):
            verify(**{**signed(compact), "body": "[" * 100_000})

    def test_errors_have_the_status_of_the_response(self) -> None:
        with self.assertRaises(VerificationError) as caught:
            verify(headers={}, body=b"", secret=SECRET)
        self.assertEqual((caught.exception.code, caught.exception.status), ("missing-header", 401))


class Loading(unittest.TestCase):
    def serve(self, respond: Callable[[BaseHTTPRequestHandler], None]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                respond(self)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}/meta"

    def check(self, public_keys: Any, body: str = EXAMPLE["body"]) -> str:
        options = {"headers": EXAMPLE["headers"], "body": body, "tolerance": 1e12}
        return code_of(lambda: verify(**options, public_keys=public_keys))

    def test_keys_of_a_url_are_kept_and_loaded_again(self) -> None:
        requests: list[str] = []

        def respond(handler: BaseHTTPRequestHandler) -> None:
            requests.append(handler.path)
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(json.dumps({"public_keys": EXAMPLE["public_keys"]}).encode())

        url = self.serve(respond)
        threads = [threading.Thread(target=self.check, args=[url]) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.check(url), "verified")
        self.assertEqual(len(requests), 1)
        self.assertEqual(self.check(url, "forged"), "unknown-key")
        self.assertEqual(len(requests), 1, "forged requests do not load within 30 seconds")
        now = time.monotonic()
        with mock.patch("nuncio_verify._public_keys.time.monotonic", lambda: now + 301):
            self.assertEqual(self.check(url), "verified")
        self.assertEqual(len(requests), 2)

    def test_responses_that_are_no_keys_are_unavailable(self) -> None:
        def redirect(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", "https://example.com/")
            handler.end_headers()

        def endless(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(b" " * 70_000)

        def malformed(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(b'{"public_keys":[{"key":"whpk_x"}]}')

        for respond in (redirect, endless, malformed):
            self.assertEqual(self.check(self.serve(respond)), "keys-unavailable")
        self.assertEqual(self.check("http://192.0.2.1/meta"), "keys-unavailable")

    def test_old_keys_are_used_for_a_day_if_loading_fails(self) -> None:
        keys = [EXAMPLE["public_keys"]]
        load = lambda: keys[0] if keys else fail()  # noqa: E731
        self.assertEqual(self.check(load), "verified")
        keys.clear()
        now = time.monotonic()
        with mock.patch("nuncio_verify._public_keys.time.monotonic", lambda: now + 80_000):
            self.assertEqual(self.check(load), "verified")
        with mock.patch("nuncio_verify._public_keys.time.monotonic", lambda: now + 90_000):
            self.assertEqual(self.check(load), "keys-unavailable")


def fail() -> None:
    raise OSError("no keys")


if __name__ == "__main__":
    unittest.main()
