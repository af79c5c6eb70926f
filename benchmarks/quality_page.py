"""QUALITY.md from the data of quality.py: tables, and how their figures were measured. Pure text."""

from __future__ import annotations

from typing import Any

ABOUT = """# Quality of the weight formats

This page is written by `python benchmarks/quality.py`; quality.json beside it has every number.

All formats are made from the same {quantization} weights of {model} ({parameters:.1f}M parameters) and measured against
them, with runner {version}: {n_scored} tokens scored in each window of {size} tokens, as `llama-perplexity
--kl-divergence` does. KLD is KL(source || format) in nats a token; PPL the perplexity; top-1 how often both think the
same token likeliest; delta p the root mean square difference in the probability of the token that came. Brackets are
95 % confidence intervals by a bootstrap over windows. bpw counts scales; "body" leaves out the embeddings and the
output matrix. Weight MSE is the squared error over the squared weights of the layers' matrices. The source runs on
{backend} ({device}). llama.cpp also rounds activations to 8 bits, which is part of what its formats show; "weights
alone" is the mean KLD of the same weights decoded to float32 and run where the source runs.
"""
OWN_TEXT = """
The text is this project's own documentation, because none was given (`--text FILE`): it is short, and it is not what
models are made for.
"""


def page(data: dict[str, Any], *, own_text: bool) -> str:
    """The whole page. own_text: the text is this project's documentation."""
    parts = []
    if data["rows"]:
        report = data["rows"][0]["report"]
        reference, windowing = report["reference"], report["windowing"]
        n_scored = report["results"][0]["n_scored"] // report["results"][0]["n_windows"]
        parts.append(
            ABOUT.format(
                quantization=reference["quantization"],
                model=data["model"],
                parameters=reference["num_parameters"] / 1e6,
                version=data["version"],
                n_scored=n_scored,
                size=windowing["size"],
                backend=reference["backend"],
                device=reference["device"],
            )
        )
        parts += [OWN_TEXT] if own_text else []
        parts.append("\n![Bits a weight against divergence](quality.svg)\n")
        parts.append(_against_q4_k_m(data["rows"]))
        parts += [_text(data["rows"], number) for number in range(len(report["results"]))]
    parts += [f"\nNot made: {name}: {reason}\n" for name, reason in data["not_made"].items()]
    parts.append(_synthetic(data["synthetic"]))
    return "".join(parts)


def _against_q4_k_m(rows: list[dict[str, Any]]) -> str:
    """The mean KLD of each format as a ratio to Q4_K_M's, weights alone where that was measured."""
    base = next((row for row in rows if row["name"] == "Q4_K_M"), None)
    if base is None:
        return ""
    texts = [result["text"] for result in base["report"]["results"]]
    lines = [
        "\n## Against Q4_K_M\n",
        "Mean KLD over that of Q4_K_M; below 1 is better. Where the tables below have one for weights alone, that is",
        "compared: what runs on native has no rounding of activations either.\n",
        "| format | bpw | body | " + " | ".join(texts) + " |",
        "|---|---|---|" + "---|" * len(texts),
    ]
    for row in rows:
        bits = row["report"]["model"]["bits"]
        ratios = " | ".join(f"{_kld(row, i) / _kld(base, i):.2f}" for i in range(len(texts)))
        lines.append(f"| {row['name']} | {bits['total']:.2f} | {bits['body']:.2f} | {ratios} |")
    return "\n".join(lines) + "\n"


def _kld(row: dict[str, Any], number: int) -> float:
    report = row["weights_alone"] or row["report"]
    value: float = report["results"][number]["against"]["mean_kld"]["value"]
    return value


def _text(rows: list[dict[str, Any]], number: int) -> str:
    first = rows[0]["report"]["results"][number]
    reference = first["against"]["reference_perplexity"]
    title = f"\n## {first['text']}\n\n{first['n_windows']} windows, {first['n_scored']} tokens scored; "
    lines = [
        title + f"perplexity of the source {_interval(reference, '.2f')}.\n",
        "| format | runs on | bpw | body | weight MSE | PPL | mean KLD | weights alone | 99 % KLD | top-1 | delta p |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(row, number) for row in rows]
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any], number: int) -> str:
    result, alone = row["report"]["results"][number], row["weights_alone"]
    against, bits = result["against"], row["report"]["model"]["bits"]
    cells = [
        row["name"],
        row["report"]["model"]["backend"],
        f"{bits['total']:.2f}",
        f"{bits['body']:.2f}",
        f"{row['weight_error']:.2e}",
        f"{result['perplexity']['value']:.2f}",
        _interval(against["mean_kld"], ".4f"),
        f"{alone['results'][number]['against']['mean_kld']['value']:.4f}" if alone else "",
        _interval(against["kld_99"], ".3f"),
        _interval(against["same_top"], ".1%").replace("%", " %"),
        f"{against['rms_delta_p']['value']:.2%}".replace("%", " %"),
    ]
    return "| " + " | ".join(cells) + " |"


def _interval(estimate: dict[str, Any], form: str) -> str:
    value = format(estimate["value"], form)
    if estimate["low"] is None:
        return value
    return f"{value} ({format(estimate['low'], form)} .. {format(estimate['high'], form)})"


def _synthetic(rows: list[dict[str, Any]]) -> str:
    kinds = list(rows[0]["errors"])
    lines = [
        "\n## Synthetic matrices\n",
        "A small model has few outliers; these matrices have what large ones have. Squared error over squared weights",
        "of random matrices (benchmarks/synthetic_weights.py); formats that rotate do so first.\n",
        "![Bits a weight against weight error](weight_error.svg)\n",
        "| format | bpw | " + " | ".join(kinds) + " |",
        "|---|---|" + "---|" * len(kinds),
    ]
    for row in rows:
        errors = " | ".join(f"{row['errors'][kind]:.2e}" for kind in kinds)
        lines.append(f"| {row['name']} | {row['bpw']:.2f} | {errors} |")
    return "\n".join(lines) + "\n"
