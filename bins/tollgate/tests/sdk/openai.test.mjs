// OpenAI's SDK for Node, unchanged but for its base URL and key: what is answered later.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { before, test } from "node:test";
import OpenAI, { toFile } from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";
import { OpenAIRealtimeWebSocket } from "openai/realtime/websocket";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { WebSocket } from "ws";

const URL = process.env.SDK_TESTS_URL;
const MODEL = "gpt-4o-mini";
/** For a job that is cancelled: it does not end before, however slow the machine is. */
const LONG = { headers: { "x-simulate-job-ms": "60000" } };
let merchant, client;

async function send(method, path, key, body) {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const answer = await fetch(URL + path, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
}

/** The job of an object, once it has ended, and its record. */
async function settled(id) {
  for (let left = 150; left > 0; left -= 1) {
    const jobs = (await send("GET", "/v1/jobs", merchant)).data;
    const job = jobs.find((one) => one.provider_object_id === id);
    if (job.state !== "running") return [job, await send("GET", `/v1/requests/${job.request_id}`, merchant)];
    await sleep(100);
  }
  assert.fail(`${id} runs for ever`);
}

before(async () => {
  const made = await send("POST", "/v1/operator/merchants", process.env.SDK_TESTS_OPERATOR_TOKEN, { name: "Node" });
  merchant = made.secret_key;
  const { wallet_id } = await send("POST", "/v1/connections", merchant, {});
  await send("POST", `/v1/wallets/${wallet_id}/credits`, merchant, { amount: "100" });
  const { key } = await send("POST", "/v1/spend_keys", merchant, { name: "Node", wallet_id });
  client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: key, defaultHeaders: { "x-simulate-job-ms": "300" } });
});

test("responses over a WebSocket are calls", async () => {
  const socket = new ResponsesWS(client);
  const ended = new Promise((resolve, reject) => {
    socket.on("response.completed", resolve);
    socket.on("error", reject);
  });
  socket.send({ type: "response.create", model: MODEL, input: "Write.", max_output_tokens: 100 });
  const { response } = await ended;
  const refused = new Promise((resolve) => socket.on("error", resolve));
  socket.send({ type: "response.create", model: "no-such-model", input: "Write." });
  assert.match((await refused).message, /model_price_unknown|known price/);
  socket.close();
  const [record] = (await send("GET", "/v1/requests?limit=1", merchant)).data;
  assert.equal(record.response_id, response.id);
  assert.equal(record.model_usage.output_tokens, response.usage.output_tokens);
  assert.match(record.socket_id, /^skt_/);
});

/** The first message of a type; an error of the SDK rejects it. */
function event(socket, type) {
  return new Promise((resolve, reject) => {
    socket.on(type, resolve);
    if (type !== "error") socket.on("error", reject);
  });
}

// Older versions of Node have none.
globalThis.WebSocket ??= WebSocket;

for (const Socket of [OpenAIRealtimeWS, OpenAIRealtimeWebSocket]) {
  test(`a conversation of ${Socket.name} is a row of calls`, async () => {
    // They open sockets only with TLS. As in a browser, the key of the second one is in a subprotocol.
    const withTls = client.withOptions({ baseURL: `${process.env.SDK_TESTS_TLS_URL}/v1` });
    const socket = new Socket({ model: "gpt-realtime" }, withTls);
    await event(socket, "session.created");
    const done = event(socket, "response.done");
    socket.send({ type: "response.create", response: { output_modalities: ["text"] } });
    const { response } = await done;
    const refused = event(socket, "error");
    socket.send({ type: "response.create", event_id: "mine", response: { prompt: { id: "pmpt_1" } } });
    assert.equal((await refused).error.event_id, "mine");
    socket.close();
    const [record] = (await send("GET", "/v1/requests?limit=1", merchant)).data;
    assert.equal(record.response_id, response.id);
    assert.equal(record.model_usage.output_tokens, response.usage.output_tokens);
    assert.match(record.socket_id, /^skt_/);
  });
}

test("a response in the background is retrieved, resumed, cancelled and deleted", async () => {
  const asked = { model: MODEL, input: "Write.", background: true, max_output_tokens: 100 };
  const created = await client.responses.create(asked);
  assert.equal(created.status, "queued");
  let response;
  do {
    await sleep(50);
    response = await client.responses.retrieve(created.id);
  } while (["queued", "in_progress"].includes(response.status));
  assert.equal(response.status, "completed");
  const [job, record] = await settled(created.id);
  assert.equal(job.state, "succeeded");
  assert.equal(record.model_usage.output_tokens, response.usage.output_tokens);

  const events = [];
  const resumed = await client.responses.retrieve(created.id, { stream: true, starting_after: 2 });
  for await (const event of resumed) events.push(event);
  assert.equal(events.at(0).sequence_number, 3);
  assert.equal(events.at(-1).type, "response.completed");

  const other = await client.responses.create(asked, LONG);
  assert.equal((await client.responses.cancel(other.id)).status, "cancelled");
  await client.responses.delete(created.id);
  await assert.rejects(client.responses.retrieve(created.id), (error) => error.code === "provider_object_not_found");
});

test("a batch of a file is created, listed, read and cancelled", async () => {
  const body = { model: MODEL, max_tokens: 64, messages: [{ role: "user", content: "What is a toll?" }] };
  const line = (number) =>
    `${JSON.stringify({ custom_id: `q${number}`, method: "POST", url: "/v1/chat/completions", body })}\n`;
  const file = await client.files.create({
    file: await toFile(Buffer.from(line(0) + line(1)), "questions.jsonl"),
    purpose: "batch",
  });
  assert.equal(await (await client.files.content(file.id)).text(), line(0) + line(1));
  const asked = { input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" };
  const created = await client.batches.create(asked);
  const listed = [];
  for await (const one of client.batches.list()) listed.push(one.id);
  assert.deepEqual(listed, [created.id]);
  let batch;
  do {
    await sleep(50);
    batch = await client.batches.retrieve(created.id);
  } while (batch.status !== "completed");
  const answers = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map(JSON.parse);
  assert.deepEqual(answers.map((one) => one.custom_id).sort(), ["q0", "q1"]);
  const [job, record] = await settled(created.id);
  assert.equal(job.state, "succeeded");
  const tokens = answers.reduce((sum, one) => sum + one.response.body.usage.completion_tokens, 0);
  assert.equal(record.lines[0].usage.output_tokens, tokens);
  const other = await client.batches.create(asked, LONG);
  assert.equal((await client.batches.cancel(other.id)).status, "cancelled");
});
