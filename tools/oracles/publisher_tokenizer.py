"""The publishers' tokenizers of the starter models, rebuilt from what their GGUF files hold.

SmolLM2: byte-level BPE with HF `tokenizers`, every digit alone, then GPT-2's pattern (its tokenizer.json says so; the GGUF file
calls this pre-tokenizer "smollm"). Gemma 3: sentencepiece BPE with byte fallback, no dummy prefix, nothing removed.
"""

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

# tokenizer.ggml.token_type -> sentencepiece's piece types (the numbers are the same in both).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def field(reader, key):
    found = reader.fields.get(key)
    return None if found is None else found.contents()


def byte_level_bpe(reader):
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    types = field(reader, "tokenizer.ggml.token_type")
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, types) if kind in (CONTROL, USER_DEFINED)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def sentencepiece_bpe(reader):
    model = proto.ModelProto()
    columns = (field(reader, f"tokenizer.ggml.{name}") for name in ("tokens", "scores", "token_type"))
    for token, score, kind in zip(*columns):
        # GGUF stores the runs of spaces among user-defined tokens as spaces, sentencepiece's models as U+2581.
        model.pieces.add(piece=token.replace(" ", "\u2581"), score=score, type=kind)
    trainer = model.trainer_spec
    trainer.model_type = proto.TrainerSpec.BPE
    trainer.byte_fallback = True
    trainer.vocab_size = len(model.pieces)
    for name, key in (("unk", "unknown"), ("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        index = field(reader, f"tokenizer.ggml.{key}_token_id")
        if index is None:
            setattr(trainer, f"{name}_id", -1)
            continue
        setattr(trainer, f"{name}_id", index)
        setattr(trainer, f"{name}_piece", model.pieces[index].piece)
    normalizer = model.normalizer_spec
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = False
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    return processor.encode


def encoder(path):
    """Returns (encode, bos): encode(text) -> ids without special tokens; bos is an id, or None where the model adds none."""
    reader = gguf.GGUFReader(path)
    kind = field(reader, "tokenizer.ggml.model")
    encode = {"gpt2": byte_level_bpe, "llama": sentencepiece_bpe}[kind](reader)
    bos = field(reader, "tokenizer.ggml.bos_token_id") if field(reader, "tokenizer.ggml.add_bos_token") else None
    return encode, bos
