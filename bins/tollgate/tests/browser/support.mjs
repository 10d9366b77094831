// What the tests of the dashboard share: a merchant of the service, and a browser that counts its clicks.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chromium } from "playwright-core";

export const base = process.env.BASE;

/** A new merchant: its secret key, and its calls of the API. */
export const newMerchant = (name) => {
  const made = execFileSync(process.env.PROGRAM, ["merchant", "create", name, "--json"], { encoding: "utf8" });
  const key = /tgs_[0-9A-Za-z]+/.exec(made)[0];
  const send = async (method, path, body) => {
    const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
    const answer = await fetch(`${base}/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
    return text.startsWith("{") ? JSON.parse(text) : text;
  };
  return { key, get: (path) => send("GET", path), post: (path, body) => send("POST", path, body) };
};

/** A call of the simulated provider with a spend key. Answers with the status. */
export const chat = async (key, url = `${base}/v1/chat/completions`) => {
  const body = { model: "gpt-4o-mini", max_tokens: 50, messages: [{ role: "user", content: "Hello!" }] };
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  await answer.text();
  return answer.status;
};

export const launch = () =>
  chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"],
  });

/** A page of a merchant who has signed in. Requests to other hosts, and errors of scripts, are failures. */
export const signIn = async (browser, key, { width = 1400, scheme = "light", scripts = true } = {}) => {
  const context = await browser.newContext({
    viewport: { width, height: 900 },
    colorScheme: scheme,
    javaScriptEnabled: scripts,
  });
  const page = await context.newPage();
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(error.message));
  page.on("console", (line) => line.type() === "error" && page.faults.push(line.text()));
  page.on("request", (request) => new URL(request.url()).origin === base || page.faults.push(request.url()));
  await page.goto(`${base}/dashboard`);
  await page.getByLabel("Secret key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Home", level: 1 }).waitFor();
  return page;
};
