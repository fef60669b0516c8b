#!/bin/sh
# make_models.sh PEERS MODELS: the re-quantized starters and the formats of the 1.07B shape, by llama-quantize. Existing files stay; a
# source that is missing is left out and said. Exit status 1 when a conversion failed, or when there was no source at all.
set -eu
[ $# -eq 2 ] || { echo "usage: make_models.sh PEERS MODELS" >&2; exit 2; }
quantize=$1/llama/bin/llama-quantize
models=$2
[ -x "$quantize" ] || { echo "$quantize is missing: build it with build.py" >&2; exit 1; }
sources=0
failed=0

make_one() {  # SOURCE TARGET TYPE
  if [ ! -f "$1" ]; then
    case " ${missing:-} " in *" $1 "*) ;; *) echo "left out: what is made of $1, which is missing" >&2; missing="${missing:-} $1" ;; esac
    return 0
  fi
  sources=$((sources + 1))
  [ -f "$2" ] && return 0
  if "$quantize" --allow-requantize "$1" "$2.part" "$3" 2 > "$2.log" 2>&1; then
    mv "$2.part" "$2" && rm "$2.log"
  else
    rm -f "$2.part"
    failed=$((failed + 1))
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
[ "$sources" -gt 0 ] || { echo "nothing to convert in $models" >&2; exit 1; }
[ "$failed" -eq 0 ] || { echo "$failed of $sources conversions failed" >&2; exit 1; }
