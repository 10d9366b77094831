#!/usr/bin/env python3
"""Makes crates/provider/tests/real/answers.jsonl of the real answers that the genai-prices project
(https://github.com/pydantic/genai-prices, MIT) has collected.

    scripts/real-answers.py CASES.json >crates/provider/tests/real/answers.jsonl

CASES.json is {"cases": [...]}, each of them an answer reduced to model and usage (`body`), the
usage that genai-prices reads from it (`expected_usage`: totals and what they contain), and the
prices that it comes to. A line has the answer as it is and the disjoint quantities that are expected
of it. They are reckoned here, from the totals: nothing of Tollgate's own reading takes part.
"""

import json
import sys
from decimal import ROUND_HALF_EVEN, Decimal

# Where Tollgate reads another usage on purpose: by model and totals, why, and which.
DIFFERS = {
    ("claude-sonnet-5", 2390, 121): (
        "an advisor of another model took part, and its turn is billed beside the rest; the turns"
        " do not say how much of them was thinking",
        {"input": 4908, "output": 143},
    ),
    ("gpt-5-2025-08-07", 45, 1719): (
        "the answer says how much of it was reasoning, which was left out of the totals",
        {"input": 45, "output": 311, "reasoning": 1408},
    ),
    ("openai.gpt-5.6-luna", 142, 33): (
        "the answer says what was written to a cache and what was reasoning, which was left out of"
        " the totals",
        {"input": 115, "cache_write": 27, "output": 22, "reasoning": 11},
    ),
}

KINDS = {
    ("anthropic", "default"): "messages",
    ("aws", "anthropic"): "messages",
    ("aws", "default"): "converse",
    ("cohere", "default"): "cohere",
    ("cohere", "embeddings"): "cohere_embed",
    ("google", "anthropic"): "messages",
    ("google", "default"): "generate_content",
    ("groq", "default"): "chat",
    ("mistral", "default"): "chat",
    ("openai", "responses"): "responses",
    ("openai", "embeddings"): "embeddings",
}

PROVIDERS = {"aws": "bedrock", "x-ai": "xai"}


def kind(case):
    found = KINDS.get((case["provider"], case["api"]), case["api"])
    if found == "generate_content" and "promptTokenDetails" in case["body"]["usageMetadata"]:
        return "embed_content"
    return found


def quantities(usage):
    """Totals and what they contain, taken apart."""
    of = lambda key: usage.get(key, 0)
    audio, image, video = (of(f"cache_{kind}_read_tokens") for kind in ("audio", "image", "video"))
    apart = {
        "cached_input": of("cache_read_tokens") - audio,
        "cached_input_audio": audio,
        "cache_write": of("cache_write_tokens"),
        "input_audio": of("input_audio_tokens") - audio,
        "input_image": of("input_image_tokens") - image,
        "input_video": of("input_video_tokens") - video,
    }
    apart["input"] = of("input_tokens") - sum(apart.values())
    out = {
        "reasoning": of("output_reasoning_tokens"),
        "output_audio": of("output_audio_tokens"),
        "output_image": of("output_image_tokens"),
    }
    out["output"] = of("output_tokens") - sum(out.values())
    every = {**apart, **out, "web_search": of("web_searches")}
    assert all(count >= 0 for count in every.values()), usage
    return {unit: count for unit, count in every.items() if count}


def cost(usage):
    """The provider's own figure, to ten decimals; with a key of one's own it is a fee beside it."""
    if usage.get("cost") is None:
        return None
    stated = Decimal(str(usage["cost"]))
    if usage.get("is_byok"):
        stated += Decimal(str(usage["cost_details"]["upstream_inference_cost"]))
    return f"{stated.quantize(Decimal('1e-10'), ROUND_HALF_EVEN):f}"


def main():
    with open(sys.argv[1], encoding="utf-8") as source:
        cases = json.load(source)["cases"]
    for case in cases:
        expected = case["expected_usage"]
        line = {
            "provider": PROVIDERS.get(case["provider"], case["provider"]),
            "kind": kind(case),
            "model": case["model"],
            "answer": case["body"],
            "quantities": quantities(expected),
        }
        key = (case["model"], expected.get("input_tokens"), expected.get("output_tokens"))
        if key in DIFFERS:
            line["differs"], line["quantities"] = DIFFERS[key]
        stated = cost(case["body"].get("usage") or {})
        if stated is not None:
            line["cost"] = stated
        for price in ("expected_input_price", "expected_output_price", "expected_total_price"):
            if price in case:
                line[price] = format(Decimal(case[price]), "f")
        print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
