// axe on every page of the demo, in light on a phone and in dark on a desk: nothing serious.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { launch } from "./support.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
// Every page of the navigation, and the first page that each list leads to.
const pages = ["", "/usage", "/usage?by=connection&measure=margin", "/requests", "/requests?status=refused", "/in-flight", "/jobs",
  "/customers", "/wallets", "/subscriptions", "/spend-keys", "/runs", "/budgets", "/pricing", "/prices", "/webhooks", "/developers",
  "/events", "/settings", "/nothing", "/usage?connection_id=x"];
const lists = ["/requests", "/requests?status=refused", "/customers", "/wallets", "/subscriptions", "/spend-keys", "/runs", "/budgets", "/pricing",
  "/webhooks", "/events"];

let browser, demo, signIn;
before(async () => {
  browser = await launch();
  demo = spawn(process.env.PROGRAM, ["demo", "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "ignore"] });
  let said = "";
  for await (const part of demo.stdout) {
    said += part;
    signIn = /^\s*dashboard\s+(http\S+)/m.exec(said)?.[1];
    if (signIn) break;
  }
});
after(async () => {
  await browser.close();
  demo.kill();
});

for (const [width, scheme] of [[1400, "dark"], [400, "light"]]) {
  test(`at ${width} pixels, ${scheme}`, async () => {
    // The policy of the pages forbids other scripts; the test brings its own.
    const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, bypassCSP: true });
    const page = await context.newPage();
    await page.goto(signIn);
    const dashboard = signIn.replace("/demo", "/dashboard");
    const all = pages.map((path) => dashboard + path);
    for (const list of lists) {
      await page.goto(dashboard + list);
      const first = page.locator("td a.main").first();
      if (await first.count()) all.push(new URL(await first.getAttribute("href"), dashboard).href);
    }
    assert.ok(all.length >= 26, `${all.length} pages`);
    const found = [];
    for (const address of all) {
      await page.goto(address);
      // What is closed at first is checked, too.
      await page.evaluate("for (const it of document.querySelectorAll('details')) it.open = true");
      await page.evaluate(axe);
      const { violations } = await page.evaluate("axe.run()");
      for (const { id, impact, nodes } of violations) {
        if (impact !== "serious" && impact !== "critical") continue;
        found.push(`${address.replace(dashboard, "")}: ${id}: ${nodes.map((node) => node.html).slice(0, 3).join("\n   ")}`);
      }
      const isTooWide = await page.evaluate("document.documentElement.scrollWidth > innerWidth");
      if (isTooWide && width === 400) found.push(`${address}: wider than the window`);
    }
    assert.deepEqual(found, [], found.join("\n"));
    await context.close();
  });
}
