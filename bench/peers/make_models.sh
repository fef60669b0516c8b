#!/bin/sh
# make_models.sh PEERS MODELS: the re-quantized starters and the formats of the 1.07B shape, by llama-quantize. Existing files stay.
set -eu
[ $# -eq 2 ] || { echo "usage: make_models.sh PEERS MODELS" >&2; exit 2; }
quantize=$1/llama/bin/llama-quantize
models=$2

make_one() {  # SOURCE TARGET TYPE
  [ -f "$2" ] && return 0
  if "$quantize" --allow-requantize "$1" "$2.part" "$3" 2 > "$2.log" 2>&1; then
    mv "$2.part" "$2" && rm "$2.log"
  else
    rm -f "$2.part"
    echo "failed: $2, see $2.log" >&2
  fi
}

for type in F32 F16 BF16 Q4_0 Q8_0 Q6_K Q5_0 Q5_1 Q2_K Q3_K_M Q4_K_M Q5_K_M IQ4_NL IQ4_XS; do
  make_one "$models/SmolLM2-135M-Instruct.Q4_1.gguf" "$models/smollm2-$type.gguf" "$type"
  make_one "$models/gemma-3-270m-Q4_K_M.gguf" "$models/gemma3-$type.gguf" "$type"
done
for type in Q4_0 Q4_K_M Q8_0 Q4_1 BF16; do
  make_one "$models/llama-1b-F16.gguf" "$models/llama-1b-$type.gguf" "$type"
done
