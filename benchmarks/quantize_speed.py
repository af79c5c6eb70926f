"""How long quantizing takes: `python benchmarks/quantize_speed.py --shape llama-3.1-8b` times `runner quantize`.

    python benchmarks/quantize_speed.py [--shape llama-3.1-8b] [--layers N] [--work DIR] [--ways calibrated plain ...]

A checkpoint of the shape of a real model is written with random bf16 weights (16 GB for llama-3.1-8b) and the demo
model's tokenizer, then quantized as a user would. --layers makes it of fewer layers, and says so: what that takes is
not scaled up. Rows: the wall-clock time of the command, the largest resident memory, and of the GPU where there is one.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from arguments import positive
from safetensors.torch import save_file
from shapes import SHAPES, config_of

from runner.paths import builtin

CHECKOUT = Path(__file__).parent.parent
RUNNER = (sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())")
WAYS = {
    "calibrated": ("--format", "mq4"),
    "plain": ("--format", "mq4", "--no-calibrate"),
    "plain, folded": ("--format", "mq4", "--no-calibrate", "--rotation", "folded"),
}


def write_checkpoint(directory: Path, config: dict[str, object]) -> int:
    """A model of that shape with random weights, a file for each layer; returns its bytes."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(builtin("models") / "demo" / name, directory / name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight_map, total = {}, 0
    for index, tensors in enumerate(_shapes(config)):
        file = f"model-{index:05d}.safetensors"
        made = {}
        for name, shape in tensors.items():
            values = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, device=device) * shape[-1] ** -0.5
            made[name] = values.to(torch.bfloat16).cpu()
            total += made[name].nbytes
        save_file(made, directory / file)
        weight_map |= dict.fromkeys(tensors, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return total


def _shapes(config: dict[str, object]) -> list[dict[str, tuple[int, ...]]]:
    """The tensors of each file: the first has what is not in a layer."""
    hidden, middle, vocab = (int(str(config[key])) for key in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, kv_heads = int(str(config["num_attention_heads"])), int(str(config["num_key_value_heads"]))
    head = int(str(config.get("head_dim", hidden // heads)))
    outside: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        outside["lm_head.weight"] = (vocab, hidden)
    files = [outside]
    for index in range(int(str(config["num_hidden_layers"]))):
        tensors: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (heads * head, hidden),
            "self_attn.k_proj.weight": (kv_heads * head, hidden),
            "self_attn.v_proj.weight": (kv_heads * head, hidden),
            "self_attn.o_proj.weight": (hidden, heads * head),
            "mlp.gate_proj.weight": (middle, hidden),
            "mlp.up_proj.weight": (middle, hidden),
            "mlp.down_proj.weight": (hidden, middle),
        }
        if config["model_type"] == "qwen3":
            tensors |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
        files.append({f"model.layers.{index}.{name}": shape for name, shape in tensors.items()})
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    dense = [name for name, shape in SHAPES.items() if "num_experts" not in shape]
    parser.add_argument("--shape", choices=dense, default="llama-3.1-8b")
    parser.add_argument("--layers", type=positive)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    config = config_of(arguments.shape, arguments.layers) | {"max_position_embeddings": 4096}
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        source = Path(work) / "source"
        size = write_checkpoint(source, config)
        place = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
        print(f"{arguments.shape}, {config['num_hidden_layers']} layers, {size / 1e9:.1f} GB of bf16, {place}\n")
        print("| way | seconds | bits a weight | largest resident memory, GB |\n|---|---|---|---|")
        for way in arguments.ways:
            started = time.monotonic()
            target = Path(work) / "made"
            done = subprocess.run(
                [*RUNNER, "quantize", str(source), *WAYS[way], "-o", str(target), "--json"],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            seconds = time.monotonic() - started
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            print(f"| {way} | {seconds:.0f} | {json.loads(done.stdout)['bpw']:.2f} | {peak:.1f} |", flush=True)
            shutil.rmtree(target)


if __name__ == "__main__":
    main()
