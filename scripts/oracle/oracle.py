"""Prices random calls with genai_prices and with our catalogue, and compares them exactly.

usage: oracle.py PRICE_LINES DIFFERENCES [SEED]

PRICE_LINES is the built example `price_lines` of tollgate-pricing. DIFFERENCES lists what may
differ: `provider model kind: reason`, with shell patterns for provider and model. The kinds are
`missing` (we have no price), `hours` (a price by the time of day on a day before the last that the
list prices), `tier` (a call served in a tier) and `price`. The exit code is 1 when something else differs, or,
with the usual seed, when an entry of the list is not needed.
"""

import datetime
import fnmatch
import json
import random
import re
import subprocess
import sys
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal

from genai_prices import types
from genai_prices.data import providers

TENTH_DECIMAL = Decimal("1e-10")
PROVIDERS = {
    "anthropic": "anthropic", "aws": "bedrock", "azure": "azure", "cerebras": "cerebras",
    "cohere": "cohere", "deepseek": "deepseek", "elevenlabs": "elevenlabs",
    "fireworks": "fireworks", "google": "google", "groq": "groq", "mistral": "mistral",
    "moonshotai": "moonshot", "novita": "novita", "openai": "openai",
    "openrouter": "openrouter", "perplexity": "perplexity", "together": "together", "x-ai": "xai",
}
FALLBACKS = {"azure": ["openai", "anthropic"], "google": ["anthropic"]}
MOMENTS = [
    datetime.datetime(*moment, tzinfo=datetime.UTC)
    for moment in [
        (2025, 6, 15, 12), (2026, 1, 20, 2), (2026, 3, 14, 12), (2026, 8, 20, 2),
        (2026, 9, 30, 20), (2026, 11, 21, 2), (2026, 11, 21, 12), (2027, 3, 1, 2),
    ]
]
# Where prices depend on the time of day: at, before and after the hours at which they change, too.
TIMES = [(hour, minute, second) for hour in range(24) for minute, second in [(0, 0), (30, 0), (59, 59)]]
# Prompts below, at and above the lengths at which prices step, and any other.
LENGTHS = [1_000, 32_000, 100_000, 128_000, 200_000, 256_000, 272_000, 512_000]
TIERS = [("processing", "batch"), ("service_tier", "priority"), ("service_tier", "flex"),
         ("service_tier", "fast"), ("speed", "fast")]


ARN = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/"
FAMILY = ["", "-latest", "-preview", "-preview-05-06", "-001", "-exp-03-25"]


def ids(clause, before):
    """Ids that a condition matches: those it names, and some that only begin or end so.

    `before` is what may stand before an id.
    """
    if isinstance(clause, types.ClauseEquals):
        yield clause.equals
    elif isinstance(clause, types.ClauseStartsWith):
        yield from (clause.starts_with, clause.starts_with + "-zz")
    elif isinstance(clause, types.ClauseEndsWith):
        yield before + clause.ends_with.removeprefix("/")
        if not clause.ends_with.startswith("/"):
            yield clause.ends_with
    elif isinstance(clause, types.ClauseContains):
        yield from (clause.contains, before + clause.contains, clause.contains + "-zz")
    elif isinstance(clause, types.ClauseRegex):
        text = clause.regex.replace(r"\d{8}", "20261007")
        text = text.replace(r"\d{4}-\d{2}-\d{2}", "2026-10-07").replace(r"\d", "001")
        text = text.replace(r"\.", ".").replace("[-@]", "@").removeprefix("^").removesuffix("$")
        if not re.search(r"[\\()|*+?\[\]]", text):
            yield text
    elif isinstance(clause, types.ClauseOr):
        for one in clause.or_:
            yield from ids(one, before)
    elif isinstance(clause, types.ClauseAnd):
        # All there is so far: what begins so and is no model of speech.
        yield from (clause.and_[0].starts_with + ending for ending in FAMILY)


def usage_of(prices, dice):
    """A usage for both: what it is for genai_prices, and our disjoint quantities."""
    has = {key for key, price in prices.__dict__.items() if price is not None}
    theirs, ours = {}, {}
    length = dice.choice([dice.randint(0, 700_000), dice.choice(LENGTHS) + dice.randint(-1, 1)])
    rest = length
    parts = {}

    def part(name):
        nonlocal rest
        parts[name] = dice.choice([0, dice.randint(0, rest), dice.randint(0, rest // 2)])
        rest -= parts[name]
        return parts[name]

    ours["cached_input"] = part("cached")
    theirs["cache_read_tokens"] = parts["cached"]
    if has & {"cache_write_mtok", "cache_write_1h_mtok"}:
        ours["cache_write"], ours["cache_write_1h"] = part("write"), part("write_1h")
        theirs["cache_write_tokens"] = parts["write"] + parts["write_1h"]
        theirs["cache_write_1h_tokens"] = parts["write_1h"]
    if "input_audio_mtok" in has:
        ours["input_audio"] = part("audio")
        theirs["input_audio_tokens"] = parts["audio"]
        if "cache_audio_read_mtok" in has:
            ours["cached_input_audio"] = part("cached_audio")
            theirs["input_audio_tokens"] += parts["cached_audio"]
            theirs["cache_read_tokens"] += parts["cached_audio"]
            theirs["cache_audio_read_tokens"] = parts["cached_audio"]
    if "input_image_mtok" in has and "cache_image_read_mtok" not in has:
        ours["input_image"] = theirs["input_image_tokens"] = part("image")
    ours["input"], theirs["input_tokens"] = rest, length
    answer = [dice.randint(0, 30_000) for _ in range(3)]
    ours["output"], theirs["output_tokens"] = answer[0], answer[0]
    if "output_reasoning_mtok" in has:
        ours["reasoning"] = theirs["output_reasoning_tokens"] = answer[1]
        theirs["output_tokens"] += answer[1]
    for key, unit, name in [("output_audio_mtok", "output_audio", "output_audio_tokens"),
                            ("output_image_mtok", "output_image", "output_image_tokens")]:
        if key in has:
            ours[unit] = theirs[name] = answer[2]
            theirs["output_tokens"] += answer[2]
            break
    for key, unit, name in [("web_searches_kcount", "web_search", "web_searches"),
                            ("storage_searches_kcount", "file_search", "storage_searches"),
                            ("input_mchars", "input_characters", "input_characters"),
                            ("input_document_kpages", "page", "input_document_pages")]:
        if key in has:
            ours[unit] = theirs[name] = dice.randint(0, 9)
    if "audio_hours" in has or "input_audio_hours" in has:
        seconds = dice.randint(10, 7_200)
        theirs["audio_seconds"] = theirs["input_audio_seconds"] = seconds
        ours["input_second"] = seconds * 1_000_000
    if "requests_kcount" in has:
        ours["request"] = 1
    return theirs, ours


def by_hours(model):
    """Whether the model has prices by the time of day."""
    lists = model.prices if isinstance(model.prices, list) else []
    return any(isinstance(one.constraint, types.TimeOfDateConstraint) for one in lists)


def moments(model):
    if not by_hours(model):
        return MOMENTS
    days = dict.fromkeys(moment.date() for moment in MOMENTS)
    return [datetime.datetime(day.year, day.month, day.day, *time, tzinfo=datetime.UTC)
            for day in days for time in TIMES]


def before_hours(model, moment):
    """Whether the model has prices by the time of day, and others by date that hold from later on."""
    dates = [one.constraint.start_date for one in model.prices
             if isinstance(one.constraint, types.StartDateConstraint)] if by_hours(model) else []
    return bool(dates) and moment.date() < max(dates)


def cases(seed):
    dice = random.Random(seed)
    for provider in providers:
        name = PROVIDERS.get(provider.id)
        if name is None:
            continue
        before = ARN if name == "bedrock" else "zz/"
        lists = [provider, *(one for one in providers if one.id in FALLBACKS.get(name, []))]
        known = dict.fromkeys(ref for one in lists for model in one.models
                              for ref in ids(model.match, before))
        for ref in known:
            model = provider.find_model(ref, all_providers=providers)
            if model is None:
                continue
            owner = next(one for one in providers if any(model is each for each in one.models))
            for moment in moments(model):
                prices = model.get_prices(moment)
                if not any(price is not None for price in prices.__dict__.values()):
                    continue
                contexts = [None]
                for key, value in TIERS:
                    variants = [variant for variant in model.price_variants or ()
                                if variant.when == {key: value} and owner is provider]
                    if any(not one.constraint or one.constraint.active(moment) for one in variants):
                        contexts.append({key: value})
                for context in contexts:
                    theirs, ours = usage_of(prices, dice)
                    usage = types.Usage(**theirs)
                    priced = model.calc_price(usage, owner, genai_request_timestamp=moment,
                                              price_context=context)
                    expected = priced.input_price, priced.total_price - priced.input_price
                    if "input_document_kpages" in prices.__dict__:
                        # Pages are input there and output here.
                        expected = Decimal(0), priced.total_price
                    elif "audio_hours" in prices.__dict__ and "input_audio_hours" not in prices.__dict__:
                        # Audio of either direction there is what was sent here.
                        audio = prices.audio_hours * theirs["audio_seconds"] / 3600
                        expected = expected[0] + audio, expected[1] - audio
                    call = {"provider": name, "model": ref, "on": moment.date().isoformat(),
                            "time": moment.time().isoformat("milliseconds"),
                            "tiers": list(context.values()) if context else [], "quantities": ours}
                    kind = "hours" if before_hours(model, moment) else "tier" if context else "price"
                    yield call, expected, kind


def rounded(amount):
    return amount.quantize(TENTH_DECIMAL, rounding=ROUND_HALF_EVEN)


def main():
    program, differences, *seed = sys.argv[1:]
    with open(differences, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    allowed = [line.split(":  ")[0].split() for line in lines]
    everything = list(cases(seed[0] if seed else "20261121"))
    asked = "".join(json.dumps(call) + "\n" for call, *_ in everything)
    answers = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    needed, unexpected, models = set(), Counter(), set()
    examples = {}
    for (call, expected, kind), line in zip(everything, answers.stdout.splitlines(), strict=True):
        models.add((call["provider"], call["model"]))
        answer = json.loads(line)
        if not answer:
            kind = "missing"
        elif (Decimal(answer["input"]), Decimal(answer["output"])) == tuple(map(rounded, expected)):
            continue
        entry = next((index for index, (provider, model, of) in enumerate(allowed)
                      if of == kind and fnmatch.fnmatchcase(call["provider"], provider)
                      and fnmatch.fnmatchcase(call["model"], model)), None)
        if entry is None:
            key = call["provider"], call["model"], kind
            unexpected[key] += 1
            examples.setdefault(key, (call, [str(rounded(one)) for one in expected], answer))
        else:
            needed.add(entry)
    for key, count in sorted(unexpected.items()):
        call, expected, answer = examples[key]
        print(*key, f"({count} calls): expected {' + '.join(expected)}, for example in")
        print("  ", json.dumps(call), json.dumps(answer))
    for index, line in enumerate(lines):
        if index not in needed:
            print("not needed:", line)
    print(f"{len(everything)} calls of {len(models)} model ids: {len(unexpected)} differ that should "
          f"not, {len(needed)} of {len(lines)} listed differences.")
    sys.exit(bool(unexpected) or (not seed and len(needed) != len(lines)))


if __name__ == "__main__":
    main()
