"""What an application does with each Python library: one call, streamed or not.

Run as a program it reads jobs, one JSON object a line, and answers each with a line: the text and the usage that
the library gave, or what it raised.
"""

import asyncio
import json
import os
import sys
import warnings
from types import SimpleNamespace

PROMPT = "Say hi."
MESSAGES = [{"role": "user", "content": PROMPT}]
LIBRARIES = {}
LOOP = asyncio.new_event_loop()


def library(name):
    def register(call):
        LIBRARIES[name] = call
        return call

    return register


@library("openai (Python)")
def openai(job):
    from openai import OpenAI

    chats = OpenAI(base_url=f"{job.url}/v1", api_key=job.key).chat.completions
    if not job.streamed:
        chat = chats.create(model=job.model, messages=MESSAGES)
        return chat.choices[0].message.content, chat.usage.prompt_tokens, chat.usage.completion_tokens
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(chats.create(model=job.model, messages=MESSAGES, **asked))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return text, chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens


@library("anthropic (Python)")
def anthropic(job):
    from anthropic import Anthropic

    messages = Anthropic(base_url=job.url, api_key=job.key).messages
    asked = {"model": job.model, "max_tokens": 64, "messages": MESSAGES}
    if job.streamed:
        with messages.stream(**asked) as stream:
            message = stream.get_final_message()
    else:
        message = messages.create(**asked)
    return message.content[0].text, message.usage.input_tokens, message.usage.output_tokens


def _google(job, base_url):
    from google import genai

    client = genai.Client(api_key=job.key, http_options={"base_url": base_url})
    if job.streamed:
        chunks = list(client.models.generate_content_stream(model=job.model, contents=PROMPT))
    else:
        chunks = [client.models.generate_content(model=job.model, contents=PROMPT)]
    used = chunks[-1].usage_metadata
    return "".join(chunk.text for chunk in chunks), used.prompt_token_count, used.candidates_token_count


@library("google-genai")
def google(job):
    return _google(job, job.url)


@library("google-genai (provider route)")
def google_by_provider(job):
    return _google(job, f"{job.url}/v1/providers/google")


@library("mistralai")
def mistral(job):
    from mistralai.client import Mistral

    chats = Mistral(api_key=job.key, server_url=f"{job.url}/v1/providers/mistral").chat
    if not job.streamed:
        chat = chats.complete(model=job.model, messages=MESSAGES)
        return chat.choices[0].message.content, chat.usage.prompt_tokens, chat.usage.completion_tokens
    chunks = [event.data for event in chats.stream(model=job.model, messages=MESSAGES)]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return text, chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens


def _cohere(job, base_url):
    import cohere

    client = cohere.ClientV2(api_key=job.key, base_url=base_url)
    if not job.streamed:
        chat = client.chat(model=job.model, messages=MESSAGES)
        used = chat.usage.billed_units
        return chat.message.content[0].text, int(used.input_tokens), int(used.output_tokens)
    events = list(client.chat_stream(model=job.model, messages=MESSAGES))
    text = "".join(event.delta.message.content.text for event in events if event.type == "content-delta")
    used = events[-1].delta.usage.billed_units
    return text, int(used.input_tokens), int(used.output_tokens)


@library("cohere")
def cohere(job):
    return _cohere(job, job.url)


@library("cohere (provider route)")
def cohere_by_provider(job):
    return _cohere(job, f"{job.url}/v1/providers/cohere")


@library("groq")
def groq(job):
    from groq import Groq

    chats = Groq(api_key=job.key, base_url=f"{job.url}/v1/providers/groq").chat.completions
    # A strict key wants it where no list says how long the model's longest answer is.
    bound = {"max_tokens": 64}
    if not job.streamed:
        chat = chats.create(model=job.model, messages=MESSAGES, **bound)
        return chat.choices[0].message.content, chat.usage.prompt_tokens, chat.usage.completion_tokens
    chunks = list(chats.create(model=job.model, messages=MESSAGES, stream=True, **bound))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    used = next(chunk.x_groq.usage for chunk in chunks if chunk.x_groq and chunk.x_groq.usage)
    return text, used.prompt_tokens, used.completion_tokens


def _langchain(model, streamed):
    if streamed:
        answer, *chunks = model.stream(PROMPT)
        for chunk in chunks:
            answer += chunk
    else:
        answer = model.invoke(PROMPT)
    return answer.text, answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]


@library("langchain-openai")
def langchain_openai(job):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=job.model, base_url=f"{job.url}/v1", api_key=job.key, stream_usage=True)
    return _langchain(model, job.streamed)


@library("langchain-anthropic")
def langchain_anthropic(job):
    from langchain_anthropic import ChatAnthropic

    return _langchain(ChatAnthropic(model=job.model, base_url=job.url, api_key=job.key), job.streamed)


@library("llama-index-llms-openai")
def llama_index_openai(job):
    from llama_index.llms.openai import OpenAI

    asked = {"stream_options": {"include_usage": True}} if job.streamed else {}
    model = OpenAI(model=job.model, api_base=f"{job.url}/v1", api_key=job.key, additional_kwargs=asked)
    answer = list(model.stream_complete(PROMPT))[-1] if job.streamed else model.complete(PROMPT)
    return answer.text, answer.raw.usage.prompt_tokens, answer.raw.usage.completion_tokens


@library("llama-index-llms-anthropic")
def llama_index_anthropic(job):
    from llama_index.llms.anthropic import Anthropic

    model = Anthropic(model=job.model, base_url=job.url, api_key=job.key)
    if job.streamed:
        *_, answer = model.stream_complete(PROMPT)
        used = answer.additional_kwargs.get("usage") or answer.raw["usage"]
    else:
        answer = model.complete(PROMPT)
        used = answer.raw["usage"]
    used = used if isinstance(used, dict) else vars(used)
    return answer.text, used["input_tokens"], used["output_tokens"]


def _pydantic_ai(model, streamed):
    from pydantic_ai import Agent

    agent = Agent(model)
    if streamed:
        answer = agent.run_stream_sync(PROMPT)
        text = answer.get_output()
    else:
        answer = agent.run_sync(PROMPT)
        text = answer.output
    used = answer.usage() if callable(answer.usage) else answer.usage
    return text, used.input_tokens, used.output_tokens


@library("pydantic-ai (OpenAI)")
def pydantic_ai_openai(job):
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{job.url}/v1", api_key=job.key)
    return _pydantic_ai(OpenAIChatModel(job.model, provider=provider), job.streamed)


@library("pydantic-ai (Anthropic)")
def pydantic_ai_anthropic(job):
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(base_url=job.url, api_key=job.key)
    return _pydantic_ai(AnthropicModel(job.model, provider=provider), job.streamed)


@library("openai-agents")
def openai_agents(job):
    from agents import Agent, Runner

    os.environ |= {"OPENAI_BASE_URL": f"{job.url}/v1", "OPENAI_API_KEY": job.key}

    async def run():
        agent = Agent(name="Tester", model=job.model)
        if not job.streamed:
            return await Runner.run(agent, PROMPT)
        result = Runner.run_streamed(agent, PROMPT)
        async for _ in result.stream_events():
            pass
        return result

    # Its client is kept from one run to the next, and belongs to one loop.
    result = LOOP.run_until_complete(run())
    used = result.context_wrapper.usage
    return result.final_output, used.input_tokens, used.output_tokens


def _litellm(job, model, api_base):
    import litellm

    asked = {"model": model, "messages": MESSAGES, "api_base": api_base, "api_key": job.key}
    if job.streamed:
        chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
        chat = litellm.stream_chunk_builder(chunks)
    else:
        chat = litellm.completion(**asked)
    return chat.choices[0].message.content, chat.usage.prompt_tokens, chat.usage.completion_tokens


@library("litellm (OpenAI)")
def litellm_openai(job):
    return _litellm(job, f"openai/{job.model}", f"{job.url}/v1")


@library("litellm (Anthropic)")
def litellm_anthropic(job):
    return _litellm(job, f"anthropic/{job.model}", job.url)


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What a library prints must not be taken for an answer.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        job = SimpleNamespace(**json.loads(line))
        try:
            text, used_input, used_output = LIBRARIES[job.client](job)
            answer = {"text": text, "input": used_input, "output": used_output}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
