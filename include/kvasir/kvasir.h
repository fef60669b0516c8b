/* kvasir: C API for embedding. One model, opened once, answers prompts on the thread that calls it.
 *
 *   kvasir_error error = {0};
 *   kvasir_options options;
 *   kvasir_default_options(&options);
 *   kvasir_model* model = kvasir_open("model.gguf", &options, &error);
 *   if (model == NULL) { fprintf(stderr, "%s\n", error.message); ... }
 *   kvasir_sampling sampling;
 *   kvasir_default_sampling(&sampling);
 *   kvasir_generate(model, "Once upon a time", &sampling, on_text, NULL, NULL, &error);
 *   kvasir_close(model);
 *
 * Strings are UTF-8. Functions that can fail return NULL, -1 or a status other than KVASIR_OK, and fill
 * `error` (which may be NULL). A model must be used by one thread at a time; different models are
 * independent. */
#ifndef KVASIR_KVASIR_H_
#define KVASIR_KVASIR_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVASIR_API __attribute__((visibility("default")))
#else
#define KVASIR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvasir_status {
  KVASIR_OK = 0,
  KVASIR_INVALID_INPUT = 1, /* a bad argument or value: the message names it */
  KVASIR_UNSUPPORTED = 2,   /* a model or setting that this build cannot run */
  KVASIR_CORRUPT_FILE = 3,
  KVASIR_NOT_FOUND = 4,
  KVASIR_RESOURCE_EXHAUSTED = 5, /* does not fit */
  KVASIR_CANCELLED = 6,          /* the callback asked to stop */
  KVASIR_INTERNAL = 7            /* a fault of kvasir's own */
} kvasir_status;

typedef struct kvasir_error {
  kvasir_status status;
  char message[512]; /* one line, cut if longer */
} kvasir_error;

typedef struct kvasir_options {
  int64_t context;         /* tokens a conversation may hold; 0: the model's limit */
  int32_t threads;         /* 0: one per core */
  int32_t chunk;           /* most tokens in one forward pass; 0: 512 */
  const char* activations; /* "auto", "f32", "bf16", "int8", "int16"; NULL: auto */
  const char* isa;         /* instruction-set level; NULL: the best */
  size_t memory_budget;    /* bytes; 0: what the machine has available */
} kvasir_options;

typedef struct kvasir_sampling {
  float temperature;        /* 0: greedy */
  int32_t top_k;            /* 0: off */
  float top_p;              /* 0: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 1: off */
  int64_t max_tokens;       /* -1: until the answer or the context ends */
  uint64_t seed;            /* same seed, same text */
} kvasir_sampling;

typedef struct kvasir_result {
  int64_t prompt_tokens;
  int64_t completion_tokens;
  double prefill_seconds;
  double decode_seconds;
  const char* finish_reason; /* "stop", "length" or "cancelled"; static */
} kvasir_result;

typedef struct kvasir_memory {
  size_t weights_bytes, kv_bytes, workspace_bytes, process_bytes, total_bytes, available_bytes;
  int64_t context, max_context;
  int32_t fits; /* 1 or 0 */
} kvasir_memory;

/* A piece of the answer: whole characters, not NUL-terminated. Return 0 to go on, anything else to stop. */
typedef int (*kvasir_on_text)(const char* text, size_t length, void* user_data);

typedef struct kvasir_model kvasir_model;

KVASIR_API const char* kvasir_version(void);
KVASIR_API void kvasir_default_options(kvasir_options* options);
KVASIR_API void kvasir_default_sampling(kvasir_sampling* sampling);

/* What a load would take, from headers alone. */
KVASIR_API kvasir_status kvasir_fit(const char* path, const kvasir_options* options, kvasir_memory* memory,
                                    kvasir_error* error);

/* `path`: a GGUF file or a model folder. Refuses what does not fit before reading a weight. */
KVASIR_API kvasir_model* kvasir_open(const char* path, const kvasir_options* options, kvasir_error* error);
KVASIR_API void kvasir_close(kvasir_model* model);

/* Completes a text as it is (no chat template). `result` may be NULL. */
KVASIR_API kvasir_status kvasir_generate(kvasir_model* model, const char* prompt,
                                         const kvasir_sampling* sampling, kvasir_on_text on_text,
                                         void* user_data, kvasir_result* result, kvasir_error* error);

/* Answers a conversation: a JSON list of messages {"role": ..., "content": ...}. What the model already holds
 * of the same conversation is not processed again. */
KVASIR_API kvasir_status kvasir_chat(kvasir_model* model, const char* messages_json,
                                     const kvasir_sampling* sampling, kvasir_on_text on_text, void* user_data,
                                     kvasir_result* result, kvasir_error* error);

/* Token ids of a text. Writes at most `capacity` ids and returns how many there are, or -1. */
KVASIR_API int64_t kvasir_tokenize(kvasir_model* model, const char* text, size_t length, int add_special,
                                   int32_t* ids, size_t capacity, kvasir_error* error);
/* Text of token ids. Writes at most `capacity` bytes (no NUL) and returns how many there are, or -1. */
KVASIR_API int64_t kvasir_detokenize(kvasir_model* model, const int32_t* ids, size_t count, char* text,
                                     size_t capacity, kvasir_error* error);

#ifdef __cplusplus
}
#endif

#endif /* KVASIR_KVASIR_H_ */
