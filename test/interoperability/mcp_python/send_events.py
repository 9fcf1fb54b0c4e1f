"""Another server of MCP Events: subscribes a callback, sends it one event, and prints what it made of the same subscription.

send_events.py <callback> <parameters of events/subscribe> <data>
"""

import json
import sys
import tempfile

from mcp_webhook_events import EventDefinition, McpEvents, SafeHttp

callback, subscription, data = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
with tempfile.TemporaryDirectory() as folder:
    kind = EventDefinition(subscription["name"], "An event.", {"type": "object"}, {"type": "object"})
    http = SafeHttp(allow_insecure_for_tests=True)
    events = McpEvents(None, f"{folder}/events.sqlite3", [kind], http=http)
    subscription["delivery"]["url"] = callback
    result = events.subscribe("a principal", subscription)
    events.publish(subscription["name"], data)
    print(json.dumps({"result": result, "sent": events.deliver_pending()}))
