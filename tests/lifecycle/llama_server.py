"""llama.cpp's own server with a random tiny model, as a process: `llama_server.py DIRECTORY` prints where it listens.

The model is made on the spot: two llama layers of random weights, a vocabulary of bytes and single characters. What it
says means nothing; its prompt cache is the real one.
"""

import os
import signal
import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

WIDTH, HEADS, LAYERS, INNER, CONTEXT = 64, 4, 2, 128, 8192


def make_model(path: Path) -> None:
    """Write the model. The same bytes each time."""
    pieces = ["<unk>", "<s>", "</s>"]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    kinds += [gguf.TokenType.BYTE] * 256
    characters = [*(chr(code) for code in range(33, 127)), "\u2581"]  # the last stands for a blank
    pieces += characters
    kinds += [gguf.TokenType.NORMAL] * len(characters)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * len(pieces))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    _add_weights(writer, len(pieces))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_weights(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    draw = np.random.default_rng(0)

    def random(name: str, rows: int, columns: int, scale: float = 0.05) -> None:
        writer.add_tensor(f"{name}.weight", (draw.standard_normal((rows, columns)) * scale).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, dtype=np.float32))

    random("token_embd", vocabulary, WIDTH)
    ones("output_norm")
    random("output", vocabulary, WIDTH, 0.5)
    for layer in range(LAYERS):
        ones(f"blk.{layer}.attn_norm")
        ones(f"blk.{layer}.ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            random(f"blk.{layer}.{name}", WIDTH, WIDTH)
        random(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        random(f"blk.{layer}.ffn_up", INNER, WIDTH)
        random(f"blk.{layer}.ffn_down", WIDTH, INNER)


def main() -> None:
    """Serve until a signal."""
    model = Path(sys.argv[1]) / "tiny.gguf"
    make_model(model)
    said = os.dup(1)
    os.dup2(2, 1)  # its log goes where it does no harm
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.warmup = CONTEXT, 1, False
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    os.write(said, f"{server.listening_address}\n".encode())
    signal.pause()


if __name__ == "__main__":
    main()
