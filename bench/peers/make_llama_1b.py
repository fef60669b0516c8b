#!/usr/bin/env python3
"""Writes the 1.07B llama shape of the speed tables as an F16 GGUF file with seeded random weights.

    make_llama_1b.py SMOLLM2.gguf OUT.gguf

16 layers, hidden 2048, feed-forward 8192, 32 heads, 8 KV heads of 64, vocabulary 49,152 with tied embeddings: 2,148 MB in F16,
630 MB in Q4_0 (whose embeddings llama-quantize keeps in Q6_K). Tokenizer fields are copied from SmolLM2's file, so that every
engine can load it. The weights say nothing; only bytes and shapes matter here. llama-quantize makes the other formats.
"""

import sys

import gguf
import numpy as np

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM = 16, 2048, 8192, 32, 8, 64


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source = gguf.GGUFReader(sys.argv[1])
    writer = gguf.GGUFWriter(sys.argv[2], "llama")
    writer.add_name("llama shape 1.07B, random")
    writer.add_block_count(LAYERS)
    writer.add_context_length(65536)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    def field(name):
        return source.fields[f"tokenizer.ggml.{name}"].contents()

    tokens = field("tokens")
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(field("model"))
    writer.add_tokenizer_pre(field("pre"))
    writer.add_token_list(tokens)
    writer.add_token_types(field("token_type"))
    writer.add_token_merges(field("merges"))
    writer.add_bos_token_id(field("bos_token_id"))
    writer.add_eos_token_id(field("eos_token_id"))
    writer.add_add_bos_token(False)

    random = np.random.default_rng(1)

    def weight(name, *shape):
        data = random.standard_normal(shape, dtype=np.float32)
        data *= 0.02
        writer.add_tensor(name, data.astype(np.float16))

    def ones(name):
        writer.add_tensor(name, np.ones(HIDDEN, dtype=np.float32))

    weight("token_embd.weight", len(tokens), HIDDEN)
    ones("output_norm.weight")
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight")
        weight(block + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        weight(block + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        weight(block + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        weight(block + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        ones(block + "ffn_norm.weight")
        weight(block + "ffn_gate.weight", FEED_FORWARD, HIDDEN)
        weight(block + "ffn_up.weight", FEED_FORWARD, HIDDEN)
        weight(block + "ffn_down.weight", HIDDEN, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
