"""Verifies deliveries with the Python library of Standard Webhooks. Takes a list of {headers, body, secret} as JSON,
and prints the bodies.
"""

import json
import sys

from standardwebhooks.webhooks import Webhook

deliveries = json.loads(sys.argv[1])
print(json.dumps([Webhook(each["secret"]).verify(each["body"], each["headers"]) for each in deliveries]))
