// Every form of the dashboard: a double click, a reload, the back button, and the same page in two tabs make nothing twice.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, newMerchant, signIn, chat, base } from "./support.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

/** The texts of required fields, by their names without the kind. */
const texts = {
  name: "From a form", url: "https://receiver.invalid/hooks", amount: "1", period_amount: "20", included_credit: "10",
  "tiers.0.rate": "25", "credit_bundles.0.name": "Pack", "credit_bundles.0.cost": "5",
  "credit_bundles.0.credit_amount": "6", time_zone: "UTC", reference_id: "", cost: "5", credit_amount: "6",
};

/** A merchant with one of each resource, and how many of each it has. */
const withContent = async () => {
  const merchant = newMerchant("Forms");
  const { get, post } = merchant;
  const connection = await post("/connections", { name: "Globex", reference_id: `c-${Math.random()}` });
  await post(`/wallets/${connection.wallet_id}/credits`, { amount: "20" });
  const meter = await post("/meters", { name: "M", rate_type: "percentage", tier_type: "tokens_1m", tiers: [{ start: "0", rate: "20" }] });
  // No plan names it, so that it can be deleted.
  const alone = await post("/meters", { name: "N", rate_type: "percentage", tier_type: "tokens_1m", tiers: [{ start: "0", rate: "20" }] });
  const plan = async (name, amount) => post("/subscription_configs", {
    name, period_amount: amount, billing_interval: "month", included_credit: amount, product_ids: [meter.meter_id],
    credit_bundles: [{ name: "Pack", cost: "5", credit_amount: "5" }],
  });
  const basic = await plan("Basic", "10");
  const pro = await plan("Pro", "30");
  const subscribed = await post("/connections", { name: "Initech" });
  await post("/subscriptions", { connection_id: subscribed.connection_id, subscription_config_id: basic.subscription_config_id });
  const budget = await post("/budgets", { name: "Research" });
  const key = await post("/spend_keys", { name: "Team" });
  assert.equal(await chat(key.key), 200);
  const hook = await post("/webhooks", { name: "Hook", url: "https://receiver.invalid/hooks", events: ["price.missing"] });
  await post(`/webhooks/${hook.webhook_id}/test`, {});
  await post("/secret_keys", { name: "Backend" });
  const count = async () => {
    const lists = {
      connections: "/connections", meters: "/meters", plans: "/subscription_configs", keys: "/spend_keys", budgets: "/budgets",
      webhooks: "/webhooks", secrets: "/secret_keys", subscriptions: "/subscriptions?status=all",
      deliveries: `/webhooks/${hook.webhook_id}/deliveries`, own: "/wallet/transactions",
      lines: `/wallets/${connection.wallet_id}/transactions`, credits: `/wallets/${subscribed.wallet_id}/transactions`,
    };
    const counts = {};
    for (const [name, path] of Object.entries(lists)) {
      const answer = await fetch(`${base}/v1${path}${path.includes("?") ? "&" : "?"}limit=100`, { headers: { Authorization: `Bearer ${merchant.key}` } });
      if (answer.ok) counts[name] = (await answer.json()).data.length;
    }
    return counts;
  };
  const pages = [
    "/customers", `/customers/${connection.connection_id}`, `/customers/${subscribed.connection_id}`,
    `/customers/${subscribed.connection_id}?plan=${pro.subscription_config_id}&on_upgrade=carry`,
    "/pricing", `/plans/${basic.subscription_config_id}`, `/meters/${alone.meter_id}`, "/spend-keys",
    `/spend-keys/${key.spend_key_id}`, "/budgets", `/budgets/${budget.budget_id}`, "/webhooks", `/webhooks/${hook.webhook_id}`, "/developers", "/settings",
  ];
  return { merchant, pages, count };
};

/** Fills the fields of a form that people fill. */
const fill = async (form) => {
  for (const field of await form.locator("input:not([type=hidden])").all()) {
    const name = (await field.getAttribute("name")).split(":")[0];
    const isEmpty = (await field.inputValue()) === "";
    if (isEmpty && (await field.getAttribute("required")) !== null) await field.fill(texts[name] ?? "1");
  }
};

/** Opens what a form is folded into. */
const open = (form) =>
  form.evaluate((it) => {
    for (let menu = it.closest("details"); menu; menu = menu.parentElement.closest("details")) menu.open = true;
  });

/** Waits until a page is loaded and what `count` counts no longer changes. */
const settle = async (page, count) => {
  let last;
  for (;;) {
    await page.waitForTimeout(100);
    const state = await page.evaluate("document.readyState").catch(() => "loading");
    const counted = JSON.stringify(await count());
    if (state === "complete" && counted === last) return JSON.parse(counted);
    last = counted;
  }
};

// Without scripts, so that only the service prevents a second time. Playwright can still look into such a page.
test("no form makes anything twice", { concurrency: 4 }, async (t) => {
  const { pages } = await withContent();
  const forms = [];
  {
    const { merchant, pages } = await withContent();
    const page = await signIn(browser, merchant.key, { scripts: false });
    for (const [place, path] of pages.entries()) {
      await page.goto(`${base}/dashboard${path}`);
      const found = await page.locator("main form[method=post]").evaluateAll((all) =>
        all.map((it) => [it.getAttribute("action"), [...it.elements].map((field) => field.name).join()]));
      found.forEach(([action, fields], index) =>
        forms.push({ place, index, fields, action: action.replace(/[a-z]{3}_\w+/g, "…") }));
    }
    await page.context().close();
  }
  assert.ok(pages.length === 15 && forms.length > 25, `${forms.length} forms`);
  // A form that stands on several pages in the same way is tried once. In short, each page has one form.
  const meant = process.env.BROWSER_SHORT ? forms.filter((form) => form.index === 0) : forms;
  const different = new Map(meant.map((form) => [form.action + form.fields, form]));
  const tried = [...different.values()].map(({ place, index, action }) =>
    t.test(action, async () => {
      const { merchant, pages, count } = await withContent();
      const page = await signIn(browser, merchant.key, { scripts: false });
      const other = await page.context().newPage();
      const address = `${base}/dashboard${pages[place]}`;
      await page.goto(address);
      const form = page.locator("main form[method=post]").nth(index);
      await open(form);
      await fill(form);
      const body = await form.evaluate((it) => new URLSearchParams(new FormData(it)).toString());
      const url = new URL(await form.getAttribute("action"), base).href;
      const before = await count();
      await form.locator("button").first().dblclick();
      const made = await settle(page, count);
      // An upgrade writes up to three lines of credit.
      const most = (name) => (name === "credits" && action.includes("changeSubscription") ? 3 : 1);
      for (const [name, number] of Object.entries(made)) {
        const more = number - (before[name] ?? number);
        assert.ok(Math.abs(more) <= most(name), `${name}: ${more} more`);
      }
      const text = await page.locator("h1").first().textContent();
      assert.doesNotMatch(text, /not done/, await page.locator("main").textContent());
      const assertNoMore = async (how) => assert.deepEqual(await settle(page, count), made, how);
      await page.reload();
      await assertNoMore("a reload");
      await page.goBack().catch(() => {});
      const again = page.locator("main form[method=post]").nth(index);
      // The browser may have loaded the page anew: then the form is another one, and is meant.
      if (await again.count() && (await again.locator("[name=form_token]").inputValue()) === new URLSearchParams(body).get("form_token")) {
        await open(again);
        await fill(again);
        await again.locator("button").first().click().catch(() => {});
        await assertNoMore("the back button");
      }
      // The same page in another tab: what the first tab has sent is sent again.
      await other.goto(address).catch(() => {});
      const answers = [];
      for (let time = 0; time < 2; time += 1) {
        const answer = await other.context().request.post(url, {
          data: body, maxRedirects: 0,
          headers: { "Content-Type": "application/x-www-form-urlencoded", Origin: base },
        });
        answers.push(answer.status());
      }
      assert.deepEqual(answers, [303, 303], "it leads to where the first one led");
      await assertNoMore("a second tab");
      await page.context().close();
    }));
  await Promise.all(tried);
});
