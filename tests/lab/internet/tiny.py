"""A tiny language model without any library: files that ``transformers`` and ``safetensors`` read."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping, Sequence


def tiny_weights(shapes: Mapping[str, Sequence[int]], seed: int = 1) -> bytes:
    """Return a safetensors file with random numbers of 32 bits."""
    draw = random.Random(seed)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    end = 0
    for name, shape in shapes.items():
        count = 1
        for length in shape:
            count *= length
        parts.append(struct.pack(f"<{count}f", *(draw.gauss(0, 0.02) for _ in range(count))))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + 4 * count]}
        end += 4 * count
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(parts)


def tiny_gpt2(layers: int = 2, width: int = 32, places: int = 128) -> dict[str, bytes]:
    """Return the files of a GPT-2 whose tokens are bytes: configuration, weights and tokenizer.

    Args:
        layers: how many blocks it has.
        width: the length of its vectors.
        places: the longest text, in tokens.
    """
    vocabulary = {sign: number for number, sign in enumerate([*_signs_of_bytes(), "<|endoftext|>"])}
    end = vocabulary["<|endoftext|>"]
    configuration = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": len(vocabulary),
        "n_positions": places,
        "n_ctx": places,
        "n_embd": width,
        "n_layer": layers,
        "n_head": 4,
        "bos_token_id": end,
        "eos_token_id": end,
    }
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (len(vocabulary), width), "wpe.weight": (places, width)}
    for block in range(layers):
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes[f"h.{block}.{name}.weight"] = (rows, columns)
            shapes[f"h.{block}.{name}.bias"] = (columns,)
        for name in ("ln_1", "ln_2"):
            shapes.update({f"h.{block}.{name}.weight": (width,), f"h.{block}.{name}.bias": (width,)})
    shapes.update({"ln_f.weight": (width,), "ln_f.bias": (width,)})
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"id": end, "content": "<|endoftext|>", "special": True, "normalized": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**added, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": pieces,
        "post_processor": None,
        "decoder": pieces,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    of_tokenizer = {
        "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": places,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
    }
    generation = {"bos_token_id": end, "eos_token_id": end}
    return {
        "config.json": _json(configuration),
        "generation_config.json": _json(generation),
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(of_tokenizer),
        "vocab.json": _json(vocabulary),
        "merges.txt": b"#version: 0.2\n",
        "model.safetensors": tiny_weights(shapes),
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _signs_of_bytes() -> list[str]:
    """Return the sign that GPT-2's tokenizer has for each byte, in its order."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + number) for number in range(len(hidden))]
