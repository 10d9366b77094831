"""The clients: where each gets its base URL and key, and what it does of its own accord that no answer changes.

The agents' pages in docs/guides/clients have the lines that a reader pastes; the same lines are run here.
"""

import json
import re
from dataclasses import dataclass, field

OPENAI, ANTHROPIC = "gpt-4o-mini", "claude-sonnet-4-5"
BOTH = (False, True)
STREAMED = (True,)


@dataclass
class Client:
    """A row of the result. A library has a worker, a program a command."""

    name: str
    package: str
    model: str
    base_url: str
    environment: str = "python"
    short: bool = False
    forms: tuple = BOTH
    # Of a program: the chapter of its page, or the files and variables that it is configured by.
    page: tuple = ()
    files: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    command: str = ""
    whole: str = ""  # what is added for an answer that is not streamed
    counted: str = ""  # what is added to see the usage
    read: object = None  # text and usage, from what it prints then
    refused_within: int = 10  # seconds until it has shown a refusal and ended, its start included


def _lines(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def claude_code(out):
    [said] = [one for one in _lines(out) if one.get("type") == "result"]
    return said["result"], said["usage"]["input_tokens"], said["usage"]["output_tokens"]


def codex(out):
    [used] = [one["usage"] for one in _lines(out) if one["type"] == "turn.completed"]
    return out, used["input_tokens"], used["output_tokens"]


def gemini_cli(out):
    said = json.loads(out[out.index("{") :])
    [used] = [one["tokens"] for one in said["stats"]["models"].values() if "main" in one["roles"]]
    return said["response"], used["prompt"], used["candidates"]


def opencode(out):
    [used] = [one["part"]["tokens"] for one in _lines(out) if one["type"] == "step_finish"]
    return out, used["input"], used["output"]


def llm(out):
    found = re.search(r"Token usage: ([\d,]+) input, ([\d,]+) output", out)
    return out, *(int(one.replace(",", "")) for one in found.groups())


def aider(out):
    found = re.search(r"Tokens: ([\d.,]+)(k?) sent, ([\d.,]+) received", out)
    # It rounds thousands.
    sent = f"{float(found[1])}k" if found[2] else int(found[1].replace(",", ""))
    return out, sent, int(found[3].replace(",", ""))


AIDER = (
    "aider --model {model} --no-git --no-show-model-warnings --yes-always --no-pretty --no-detect-urls "
    "--no-gitignore --message 'Say hi.'"
)
OPENCODE = "opencode run --model {model}"
OPENCODE_FILE = {"json": "~/.config/opencode/opencode.json"}

CLIENTS = [
    Client(
        *("Claude Code", "@anthropic-ai/claude-code", "", "`ANTHROPIC_BASE_URL`: `$BASE`", "node"),
        forms=STREAMED,
        page=("claude-code.md", "Set it up", {}),
        command="claude -p 'Say hi.'",
        counted="--output-format json",
        read=claude_code,
    ),
    Client(
        *("Codex", "@openai/codex", "", "`base_url` of a provider: `$BASE/v1`", "node"),
        forms=STREAMED,
        page=("codex.md", "Set it up", {"toml": "~/.codex/config.toml"}),
        command="codex exec --skip-git-repo-check 'Say hi.'",
        counted="--json",
        read=codex,
    ),
    Client(
        *("Codex (its own provider)", "@openai/codex", "", "`openai_base_url`: `$BASE/v1`", "node"),
        forms=STREAMED,
        page=("codex.md", "Keep Codex's built-in provider", {"toml": "~/.codex/config.toml"}),
        command="codex exec --skip-git-repo-check 'Say hi.'",
        counted="--json",
        read=codex,
        # It opens a WebSocket six times with growing pauses before it sends the call at all.
        refused_within=30,
    ),
    Client(
        *("Gemini CLI", "@google/gemini-cli", "", "`GOOGLE_GEMINI_BASE_URL`: `$BASE`", "node"),
        forms=STREAMED,
        page=("gemini-cli.md", "Set it up", {"json": "~/.gemini/settings.json"}),
        command="gemini --skip-trust --prompt 'Say hi.'",
        counted="--output-format json",
        read=gemini_cli,
    ),
    Client(
        *("opencode (OpenAI)", "opencode-ai", f"openai/{OPENAI}", "`baseURL` of `openai`: `$BASE/v1`", "node"),
        forms=STREAMED,
        page=("opencode.md", "Set it up", OPENCODE_FILE),
        command=f"{OPENCODE} 'Say hi.'",
        counted="--format json",
        read=opencode,
    ),
    Client(
        *("opencode (Anthropic)", "opencode-ai", f"anthropic/{ANTHROPIC}"),
        *("`baseURL` of `anthropic`: `$BASE/v1`", "node"),
        forms=STREAMED,
        page=("opencode.md", "Set it up", OPENCODE_FILE),
        command=f"{OPENCODE} 'Say hi.'",
        counted="--format json",
        read=opencode,
    ),
    Client(
        *("aider (OpenAI)", "aider-chat", f"openai/{OPENAI}", "`OPENAI_API_BASE`: `$BASE/v1`", "aider"),
        variables={"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"},
        command=AIDER,
        whole="--no-stream",
        read=aider,
    ),
    Client(
        *("aider (Anthropic)", "aider-chat", f"anthropic/{ANTHROPIC}", "`ANTHROPIC_API_BASE`: `$BASE`", "aider"),
        variables={"ANTHROPIC_API_BASE": "{url}", "ANTHROPIC_API_KEY": "{key}"},
        command=AIDER,
        whole="--no-stream",
        read=aider,
    ),
    Client(
        *("llm", "llm", "tollgate", "`api_base` in `extra-openai-models.yaml`: `$BASE/v1`"),
        short=True,
        files={
            "~/.config/io.datasette.llm/extra-openai-models.yaml": "- model_id: tollgate\n"
            f"  model_name: {OPENAI}\n  api_base: {{url}}/v1\n  api_key_name: tollgate\n",
            "~/.config/io.datasette.llm/keys.json": '{{"tollgate": "{key}"}}',
        },
        command="llm --model {model} 'Say hi.'",
        whole="--no-stream",
        counted="--usage 2>&1",
        read=llm,
    ),
    Client("openai (Python)", "openai", OPENAI, "`base_url`: `$BASE/v1`", short=True),
    Client("anthropic (Python)", "anthropic", ANTHROPIC, "`base_url`: `$BASE`", short=True),
    Client("openai (Node)", "openai", OPENAI, "`baseURL`: `$BASE/v1`", "node", short=True),
    Client("anthropic (Node)", "@anthropic-ai/sdk", ANTHROPIC, "`baseURL`: `$BASE`", "node", short=True),
    Client("AI SDK (OpenAI)", "@ai-sdk/openai", OPENAI, "`baseURL`: `$BASE/v1`", "node", short=True),
    Client("AI SDK (Anthropic)", "@ai-sdk/anthropic", ANTHROPIC, "`baseURL`: `$BASE/v1`", "node", short=True),
    Client("google-genai", "google-genai", "gemini-2.5-flash", "`http_options.base_url`: `$BASE`", short=True),
    Client(
        *("google-genai (provider route)", "google-genai", "gemini-2.5-flash"),
        "`http_options.base_url`: `$BASE/v1/providers/google`",
    ),
    Client(
        *("mistralai", "mistralai", "mistral-small-latest", "`server_url`: `$BASE/v1/providers/mistral`"),
        short=True,
    ),
    Client("cohere", "cohere", "command-a-03-2025", "`base_url`: `$BASE`", short=True),
    Client("cohere (provider route)", "cohere", "command-a-03-2025", "`base_url`: `$BASE/v1/providers/cohere`"),
    Client("groq", "groq", "llama-3.3-70b-versatile", "`base_url`: `$BASE/v1/providers/groq`", short=True),
    Client("langchain-openai", "langchain-openai", OPENAI, "`base_url`: `$BASE/v1`"),
    Client("langchain-anthropic", "langchain-anthropic", ANTHROPIC, "`base_url`: `$BASE`"),
    Client(
        *("llama-index-llms-openai", "llama-index-llms-openai", OPENAI, "`api_base`: `$BASE/v1`", "llama-index"),
    ),
    Client(
        *("llama-index-llms-anthropic", "llama-index-llms-anthropic", ANTHROPIC),
        *("`base_url`: `$BASE`", "llama-index"),
    ),
    Client("pydantic-ai (OpenAI)", "pydantic-ai-slim", OPENAI, "`base_url` of `OpenAIProvider`: `$BASE/v1`"),
    Client("pydantic-ai (Anthropic)", "pydantic-ai-slim", ANTHROPIC, "`base_url` of `AnthropicProvider`: `$BASE`"),
    Client("openai-agents", "openai-agents", OPENAI, "`OPENAI_BASE_URL`: `$BASE/v1`"),
    Client("litellm (OpenAI)", "litellm", OPENAI, "`api_base`: `$BASE/v1`", "llama-index"),
    Client("litellm (Anthropic)", "litellm", ANTHROPIC, "`api_base`: `$BASE`", "llama-index"),
]

# What keeps a client from calling anything else.
QUIET = {
    "AIDER_ANALYTICS_DISABLE": "true",
    "AIDER_CHECK_UPDATE": "false",
    "AI_SDK_LOG_WARNINGS": "false",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DO_NOT_TRACK": "1",
    "GEMINI_TELEMETRY_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}

# What a client does of its own accord, whatever it is answered: (client, case) to what fails there, in the words of
# harness.Failed, and why. A row that is no longer needed fails the run, and docs/guides/clients/index.md has every reason.
QUOTA = "shows words of its own, and ends"
OPENCODE_429 = "`opencode run` repeats it without end, and shows nothing meanwhile"
GEMINI_429 = "repeats it with growing pauses, and shows the message each time"
AIDER_RETRIES = "repeats them for a minute"
AIDER_COUNTS = "asks for no usage, and counts with a tokenizer of its own"
EXCEPTIONS = {
    ("Codex", "429 requests"): ("message", QUOTA),
    ("Codex (its own provider)", "429 requests"): ("message", QUOTA),
    ("opencode (OpenAI)", "429 requests"): ("silent", OPENCODE_429),
    ("opencode (OpenAI)", "429 rate"): ("silent", OPENCODE_429),
    ("opencode (Anthropic)", "429 requests"): ("silent", OPENCODE_429),
    ("opencode (Anthropic)", "429 rate"): ("silent", OPENCODE_429),
    ("Gemini CLI", "429 requests"): ("retries", GEMINI_429),
    ("Gemini CLI", "429 rate"): ("retries", GEMINI_429),
    **{
        (name, case): ("retries", AIDER_RETRIES)
        for name in ("aider (OpenAI)", "aider (Anthropic)")
        for case in ("402 limit", "402 wallet", "403 model", "403 paused", "429 requests", "429 rate")
    },
    **{
        (name, case): ("usage", AIDER_COUNTS)
        for name in ("aider (OpenAI)", "aider (Anthropic)")
        for case in ("streamed bounded", "streamed strict")
    },
}
