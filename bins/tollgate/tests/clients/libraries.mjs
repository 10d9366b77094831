// What an application does with each library for Node: one call, streamed or not. As libraries.py it reads jobs,
// one JSON object a line, and answers each with a line.
import { createInterface } from "node:readline";

const PROMPT = "Say hi.";
const messages = [{ role: "user", content: PROMPT }];

async function openai({ url, key, model, streamed }) {
  const { default: OpenAI } = await import("openai");
  const chats = new OpenAI({ baseURL: `${url}/v1`, apiKey: key }).chat.completions;
  if (!streamed) {
    const chat = await chats.create({ model, messages });
    return [chat.choices[0].message.content, chat.usage.prompt_tokens, chat.usage.completion_tokens];
  }
  let text = "", usage;
  for await (const chunk of await chats.create({ model, messages, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  return [text, usage.prompt_tokens, usage.completion_tokens];
}

async function anthropic({ url, key, model, streamed }) {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: key });
  const asked = { model, max_tokens: 64, messages };
  const message = streamed ? await client.messages.stream(asked).finalMessage() : await client.messages.create(asked);
  return [message.content[0].text, message.usage.input_tokens, message.usage.output_tokens];
}

async function sdk(model, streamed) {
  const { generateText, streamText } = await import("ai");
  if (!streamed) {
    const { text, usage } = await generateText({ model, prompt: PROMPT });
    return [text, usage.inputTokens, usage.outputTokens];
  }
  // Its streams end quietly; errors come to this callback.
  let failed;
  const result = streamText({ model, prompt: PROMPT, onError: ({ error }) => (failed = error) });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  if (failed) throw failed;
  const usage = await result.usage;
  return [text, usage.inputTokens, usage.outputTokens];
}

async function sdkOpenAI({ url, key, model, streamed }) {
  const { createOpenAI } = await import("@ai-sdk/openai");
  return sdk(createOpenAI({ baseURL: `${url}/v1`, apiKey: key })(model), streamed);
}

async function sdkAnthropic({ url, key, model, streamed }) {
  const { createAnthropic } = await import("@ai-sdk/anthropic");
  return sdk(createAnthropic({ baseURL: `${url}/v1`, apiKey: key })(model), streamed);
}

const LIBRARIES = {
  "openai (Node)": openai,
  "anthropic (Node)": anthropic,
  "AI SDK (OpenAI)": sdkOpenAI,
  "AI SDK (Anthropic)": sdkAnthropic,
};

const say = process.stdout.write.bind(process.stdout);
console.log = console.info = console.warn = console.error;
for await (const line of createInterface({ input: process.stdin })) {
  const job = JSON.parse(line);
  let answer;
  try {
    const [text, input, output] = await LIBRARIES[job.client](job);
    answer = { text, input, output };
  } catch (error) {
    answer = { error: `${error.name}: ${error.message}` };
  }
  say(`${JSON.stringify(answer)}\n`);
}
