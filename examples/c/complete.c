/* Completes a text with the C API: complete MODEL PROMPT [MAX_TOKENS] */
#include <kvasir/kvasir.h>
#include <stdio.h>
#include <stdlib.h>

static int print_text(const char* text, size_t length, void* user_data) {
  (void)user_data;
  fwrite(text, 1, length, stdout);
  fflush(stdout);
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: complete MODEL PROMPT [MAX_TOKENS]\n");
    return 2;
  }
  kvasir_error error;
  kvasir_options options;
  kvasir_default_options(&options);
  options.context = 1024;
  kvasir_model* model = kvasir_open(argv[1], &options, &error);
  if (model == NULL) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  kvasir_sampling sampling;
  kvasir_default_sampling(&sampling);
  sampling.temperature = 0;
  sampling.max_tokens = argc > 3 ? atoi(argv[3]) : 64;
  kvasir_result result;
  const kvasir_status status = kvasir_generate(model, argv[2], &sampling, print_text, NULL, &result, &error);
  if (status != KVASIR_OK) {
    fprintf(stderr, "%s\n", error.message);
  } else {
    printf("\n");
    fprintf(stderr, "%lld tokens, finish reason %s\n", (long long)result.completion_tokens,
            result.finish_reason);
  }
  kvasir_close(model);
  return status == KVASIR_OK ? 0 : 1;
}
