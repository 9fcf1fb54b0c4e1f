"""The cases that the libraries of all languages share."""

import base64
import json
import os
import unittest
from pathlib import Path
from typing import Any

from nuncio_verify import Delivery, VerificationError, verify

FILE = Path(os.environ.get("VECTORS") or Path(__file__).parents[3] / "test/vectors/signatures.json")
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]


def fail() -> None:
    raise OSError("no keys")


def run(case: dict[str, Any]) -> Delivery:
    body = case.get("body")
    return verify(
        headers=case["headers"],
        body=base64.b64decode(case["body_base64"]) if "body_base64" in case else body,  # type: ignore[arg-type]
        secrets=case.get("secrets", []),
        public_keys=fail if case.get("keys_fail") else case.get("public_keys"),
        header_names=case.get("header_names"),
        tolerance=case.get("tolerance", 1e12),
    )


class Vectors(unittest.TestCase):
    def test_each_vector_has_its_outcome(self) -> None:
        for case in CASES:
            with self.subTest(case["name"]):
                if "delivery" in case:
                    self.assertEqual(run(case), Delivery(**case["delivery"]))
                    continue
                with self.assertRaises(VerificationError) as caught:
                    run(case)
                self.assertEqual(caught.exception.code, case["error"], caught.exception)
                for secret in case.get("secrets", []):
                    self.assertFalse(len(secret) > 10 and secret.strip() in str(caught.exception))
        self.assertGreater(len(CASES), 100)
        print(f"{len(CASES)} vectors")


if __name__ == "__main__":
    unittest.main()
