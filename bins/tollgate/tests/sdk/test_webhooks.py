"""Webhooks, verified by the library that the Standard Webhooks project publishes."""

import queue
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

from tollgate import Merchant


class Receiver(ThreadingHTTPServer):
    """Takes messages, and answers with the statuses it was given, then with 200."""

    daemon_threads = True

    def __init__(self, *statuses):
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = list(statuses)
        self.messages = queue.Queue()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def next(self):
        """Body and headers of the next message, as bytes and a dict."""
        return self.messages.get(timeout=20)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        statuses = self.server.statuses
        self.send_response(statuses.pop(0) if statuses else 200)
        self.end_headers()
        self.server.messages.put((body, dict(self.headers)))

    def log_message(self, *_):
        pass


class WebhookTest(unittest.TestCase):
    def setUp(self):
        self.merchant = Merchant()
        # When a message has come through, what happened before is told to nobody any more.
        receiver, webhook = self.receive(events=["price.missing"])
        self.operate(webhook, "test")
        receiver.next()

    def receive(self, *statuses, events=None):
        """A receiver, and a webhook that tells it of these events."""
        receiver = Receiver(*statuses)
        self.addCleanup(receiver.server_close)
        self.addCleanup(receiver.shutdown)
        url = f"http://127.0.0.1:{receiver.server_port}/hooks"
        new = {"name": "Library", "url": url, "events": events}
        return receiver, self.merchant.send("POST", "/v1/webhooks", new)

    def operate(self, webhook, operation):
        return self.merchant.send("POST", f"/v1/webhooks/{webhook['webhook_id']}/{operation}", {})

    def assert_refused(self, secret, body, headers):
        with self.assertRaises(WebhookVerificationError):
            Webhook(secret).verify(body, headers)

    def test_every_message_is_verified(self):
        receiver, webhook = self.receive(events=["connection.created"])
        names = [f"Zoë {number}" for number in range(20)]
        for name in names:
            self.merchant.send("POST", "/v1/connections", {"name": name})
        self.operate(webhook, "test")
        library = Webhook(webhook["webhook_secret"])
        messages = [library.verify(*receiver.next()) for _ in range(len(names) + 1)]
        messages.sort(key=lambda message: message["sequence"])
        self.assertEqual([message["sequence"] for message in messages], list(range(1, 22)))
        told = [message["data"]["connection"]["name"] for message in messages if "connection" in message["data"]]
        self.assertEqual(sorted(told), sorted(names))

    def test_both_secrets_are_good_after_a_rotation(self):
        receiver, webhook = self.receive()
        old = webhook["webhook_secret"]
        new = self.operate(webhook, "rotate")["webhook_secret"]
        test = self.operate(webhook, "test")
        body, headers = receiver.next()
        for secret in (old, new):
            message = Webhook(secret).verify(body, headers)
            self.assertEqual((message["type"], headers["webhook-id"]), ("webhook.test", test["event_id"]))
        newest = self.operate(webhook, "rotate")["webhook_secret"]
        self.operate(webhook, "test")
        body, headers = receiver.next()
        for secret in (old, new, newest):
            Webhook(secret).verify(body, headers)

    def test_what_was_changed_or_signed_by_another_is_refused(self):
        receiver, webhook = self.receive()
        _, other = self.receive()
        self.operate(webhook, "test")
        body, headers = receiver.next()
        secret = webhook["webhook_secret"]
        Webhook(secret).verify(body, headers)
        self.assert_refused(other["webhook_secret"], body, headers)
        self.assert_refused(secret, body.replace(b"Library", b"Librarx"), headers)
        self.assert_refused(secret, body + b" ", headers)
        self.assert_refused(secret, body, headers | {"webhook-id": "evt_1"})
        later = str(int(headers["webhook-timestamp"]) + 1)
        self.assert_refused(secret, body, headers | {"webhook-timestamp": later})
        _, _, signature = headers["webhook-signature"].partition(",")
        self.assert_refused(secret, body, headers | {"webhook-signature": f"v1a,{signature}"})

    def test_what_is_sent_again_is_signed_anew(self):
        receiver, webhook = self.receive(500)
        self.operate(webhook, "test")
        library = Webhook(webhook["webhook_secret"])
        (first, at_first), (second, at_second) = receiver.next(), receiver.next()
        self.assertEqual(library.verify(first, at_first), library.verify(second, at_second))
        self.assertEqual(at_first["webhook-id"], at_second["webhook-id"])
        pause = int(at_second["webhook-timestamp"]) - int(at_first["webhook-timestamp"])
        self.assertIn(pause, range(5, 10))
        self.assertNotEqual(at_first["webhook-signature"], at_second["webhook-signature"])


if __name__ == "__main__":
    unittest.main()
