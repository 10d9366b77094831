// Five everyday tasks of a merchant, each with its clicks and its time. What the pages show is what the API answers with.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chat, launch, newMerchant, signIn } from "./support.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

/** An amount of the API as the pages show it on hover. */
const exact = (amount) => `$${amount.replace(/0+$/, "").replace(/\.(\d?)$/, (_, digit) => `.${digit.padEnd(2, "0")}`)}`;

const isVisible = async (found) => (await found.filter({ visible: true }).count()) > 0;

const variants = process.env.BROWSER_SHORT ? [
  { width: 1400, scheme: "light", scripts: true },
  { width: 400, scheme: "dark", scripts: false },
] : [
  { width: 1400, scheme: "light", scripts: true },
  { width: 1400, scheme: "dark", scripts: false },
  { width: 400, scheme: "light", scripts: false },
  { width: 400, scheme: "dark", scripts: true },
];

for (const variant of variants) {
  const { width, scheme, scripts } = variant;
  test(`at ${width} pixels, ${scheme}, ${scripts ? "with" : "without"} scripts`, async (t) => {
    const merchant = newMerchant("Acme");
    const page = await signIn(browser, merchant.key, variant);
    let clicks = 0;
    const click = async (target) => {
      clicks += 1;
      await target.click();
    };
    const link = (name, within = page) => click(within.getByRole("link", { name, exact: true }).first());
    const button = (name, within = page) => click(within.getByRole("button", { name, exact: true }).first());
    const go = (name) => click(page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name, exact: true }));
    const task = (name, steps) =>
      t.test(name, async (it) => {
        clicks = 0;
        const began = performance.now();
        await steps();
        it.diagnostic(`${clicks} clicks, ${Math.round(performance.now() - began)} ms`);
        const isTooWide = await page.evaluate("document.documentElement.scrollWidth > innerWidth");
        assert.equal(isTooWide, false, "the page is wider than the window");
        assert.deepEqual(page.faults, []);
      });
    const keys = {};

    await task("keys for a team, and who spent what", async () => {
      for (const name of ["Team blue", "Team red"]) {
        await go("Keys");
        const form = page.locator("#new");
        if (!(await form.locator("details").getAttribute("open").then((it) => it !== null))) {
          await click(form.locator("summary"));
        }
        await form.getByLabel("Name").fill(name);
        await form.getByLabel("Spend limit, USD").fill("5");
        await button("Make the key", form);
        keys[name] = (await page.locator("#key").textContent()).trim();
        await link("I have copied it");
      }
      assert.equal(await chat(keys["Team blue"]), 200);
      assert.equal(await chat(keys["Team blue"]), 200);
      assert.equal(await chat(keys["Team red"]), 200);
      await go("Usage");
      await link("Key");
      const usage = await merchant.get("/usage?group_by=spend_key&interval=none");
      const names = await merchant.get("/spend_keys");
      for (const item of usage.items ?? usage.data) {
        const { name } = names.data.find((key) => key.spend_key_id === item.group.spend_key);
        const row = page.getByRole("row", { name });
        assert.ok(await isVisible(row.getByTitle(exact(item.total_request_cost))), name);
      }
    });

    await task("a plan with an upgrade, and the statement", async () => {
      for (const [name, price] of [["Basic", "10"], ["Pro", "30"]]) {
        await go("Pricing");
        const form = page.locator("form[action$=createSubscriptionConfig]");
        if (!(await form.isVisible())) await click(page.locator("#plans summary"));
        await form.getByLabel("Name", { exact: true }).fill(name);
        await form.getByLabel("Price, USD", { exact: true }).fill(price);
        await button("Make the plan", form);
        await page.getByRole("heading", { name, level: 1 }).waitFor();
      }
      await go("Customers");
      await page.getByLabel("Name").fill("Globex");
      await button("Make the customer");
      await page.getByLabel("Subscribe to").selectOption({ label: "Basic: $10.00 a month" });
      await button("Subscribe");
      await page.getByLabel("Change to").selectOption({ label: "Pro: $30.00 a month" });
      await page.getByLabel("On an upgrade").selectOption("prorate");
      await button("Preview the change");
      const preview = await page.locator(".preview").textContent();
      assert.match(preview, /To collect\s*\$20\.00/);
      await button("Change the plan");
      await page.getByText("$40.00 of $40.00 left").waitFor();
      await page.getByLabel("Add, USD").fill("25");
      await button("Add credit");
      const month = new Date().toISOString().slice(0, 7);
      await link(month, page.locator("#statements"));
      const text = await page.locator("body").textContent();
      const customer = (await merchant.get("/connections")).data[0].connection_id;
      const statement = await merchant.get(`/connections/${customer}/statements/${month}`);
      assert.equal(statement.closing_balance, "25.0000000000");
      for (const part of ["Globex", "Acme", "25.00", "Plan charges"]) assert.ok(text.includes(part), part);
      await page.goBack();
    });

    await task("an SDK behind it", async () => {
      await go("Developers");
      const example = await page.locator("pre", { hasText: "curl" }).first().textContent();
      const url = /http:\S+/.exec(example)[0];
      assert.equal(await chat(keys["Team red"], url), 200);
      await go("Home");
      await page.getByRole("heading", { name: "Newest requests" }).waitFor();
      assert.equal(await page.locator("#live-calls tbody tr").count(), 4);
      if (scripts) {
        // The page itself shows the next call.
        assert.equal(await chat(keys["Team red"]), 200);
        await page.locator("#live-calls tbody tr").nth(4).waitFor({ timeout: 15_000 });
      }
    });

    await task("why a call was refused", async () => {
      const small = await merchant.post("/spend_keys", {
        name: "Small",
        spend_limit: { amount: "0.0000001", cycle: "daily" },
        enforcement: "strict",
      });
      assert.equal(await chat(small.key), 402);
      await go("Requests");
      await click(page.getByRole("navigation", { name: "State" }).getByRole("link", { name: /Refused/ }));
      await click(page.locator("td a.main").first());
      const refusal = (await merchant.get("/refusals")).data[0];
      await page.getByText(refusal.message).waitFor();
      await page.getByText("What helps:").waitFor();
      await link("Do it");
      await page.getByLabel("Spend limit, USD").fill("5");
      await button("Save");
      assert.equal(await chat(small.key), 200);
    });

    await task("the usage of each customer for the invoice", async () => {
      const customer = (await merchant.get("/connections")).data[0];
      const key = await merchant.post("/spend_keys", { name: "Globex", wallet_id: customer.wallet_id });
      assert.equal(await chat(key.key), 200);
      await go("Usage");
      await link("This month");
      await link("Customer");
      const row = page.getByRole("row", { name: /Globex/ });
      const usage = await merchant.get(`/usage?connection_id=${customer.connection_id}&interval=none`);
      const { revenue } = usage.totals;
      assert.notEqual(Number(revenue), 0);
      await link("Revenue");
      assert.ok(await isVisible(row.getByTitle(exact(revenue))), revenue);
      const download = page.waitForEvent("download");
      await link("CSV");
      const file = await (await download).createReadStream();
      let csv = "";
      for await (const part of file) csv += part;
      const line = csv.split("\r\n").find((it) => it.includes(customer.connection_id));
      assert.ok(line.includes(revenue), `${revenue} in ${line}`);
    });
    await page.context().close();
  });
}
