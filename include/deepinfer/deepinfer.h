/* The C interface: every function of the module (docs/module.md), for C99, C++ and foreign-function
 * interfaces.
 *
 * Errors. Functions return a deepinfer_status; deepinfer_last_error() then has one line of text
 * that names the argument, what was expected and what was found. Everything is checked before
 * anything is written. No C++ exception leaves a function. Handles and pointers that are NULL are
 * refused by name, except where it says so.
 *
 * Structs. `struct_size` comes first and is set by the caller to sizeof. A smaller size is that of
 * an older caller: fields that it lacks have their defaults. A larger one is that of a newer
 * caller: bytes that this library does not know must be zero.
 *
 * Threads. Handles may be used from several threads at once; calls that compute with one context
 * run one after another. A handle may be destroyed when no call uses it. Work of a call is shared
 * by the threads of its context. After the first call of its kind and size, a thread's calls of
 * functions that compute do not allocate.
 *
 * Memory. Handles keep pointers to codes and scales that were handed in: these must outlive them. A
 * struct is only read during the call.
 *
 * Results are the bits of docs/determinism.md whatever the threads, the instruction set, the number
 * of rows or the switches.
 */
#ifndef DEEPINFER_DEEPINFER_H_
#define DEEPINFER_DEEPINFER_H_

#include <stddef.h>
#include <stdint.h>

#include "deepinfer/export.h"

#ifdef __cplusplus
#define DEEPINFER_NOEXCEPT noexcept
extern "C" {
#else
#define DEEPINFER_NOEXCEPT
#endif

/* Status */

typedef int32_t deepinfer_status;
enum {
  DEEPINFER_OK = 0,
  DEEPINFER_INVALID_ARGUMENT = 1, /* the caller passed something that cannot be right */
  DEEPINFER_BAD_INPUT = 2,        /* a file is missing, damaged or contradictory */
  DEEPINFER_UNSUPPORTED = 3,      /* valid, but this build, CPU or version cannot do it */
  DEEPINFER_OUT_OF_MEMORY = 4,
  DEEPINFER_IO = 5,      /* output could not be written */
  DEEPINFER_INTERNAL = 6 /* a fault of this library, or an executor that throws */
};

/* The text of this thread's last call that failed; "" when none has. Valid until this thread's next
 * call that fails. */
DEEPINFER_API const char* deepinfer_last_error(void) DEEPINFER_NOEXCEPT;

/* "0.1.0" */
DEEPINFER_API const char* deepinfer_version(void) DEEPINFER_NOEXCEPT;
/* Version of docs/determinism.md: results with the same number have the same bits. */
DEEPINFER_API int32_t deepinfer_numeric_contract(void) DEEPINFER_NOEXCEPT;

/* Tensors */

typedef int32_t deepinfer_dtype;
enum {
  DEEPINFER_BF16 = 1,
  DEEPINFER_F32 = 2,
  DEEPINFER_F8_E4M3FN = 3,
  DEEPINFER_F4_E2M1X2 = 4, /* two codes in a byte, even k in the low nibble; shapes count bytes */
  DEEPINFER_F8_E8M0 = 5,
  DEEPINFER_U8 = 6,
  DEEPINFER_I16 = 7, /* only packed scales: two e8m0 bytes each */
  DEEPINFER_I32 = 8  /* only flags */
};

/* Memory of the caller. Inputs are only read. */
typedef struct deepinfer_tensor {
  size_t struct_size;
  void* data;
  deepinfer_dtype dtype;
  int32_t rank;      /* 1 to 4; dimensions past it are ignored */
  int64_t shape[4];  /* elements */
  int64_t stride[4]; /* elements from one index to the next; 0: dense */
} deepinfer_tensor;

/* Contexts: threads and instruction set. */

typedef struct deepinfer_context deepinfer_context;

/* Threads that the caller brings along. The struct is copied. */
typedef struct deepinfer_executor {
  size_t struct_size;
  void* user; /* first argument of both */
  /* Into how many parts work is split; 1 or more, always the same. */
  int32_t (*num_threads)(void* user);
  /* Calls run(task, i) once for every i in [0, num_threads), in any order, on any threads, and
   * returns when all calls have returned. */
  void (*parallel)(void* user, void (*run)(void* task, int i), void* task);
} deepinfer_executor;

typedef struct deepinfer_context_options {
  size_t struct_size;
  int32_t num_threads; /* 0: DEEPINFER_THREADS, or else the CPUs of this process */
  int32_t gemm;        /* 0 off, 1 on, -1 (the default): DEEPINFER_GEMM */
  int32_t split2;      /* 0 off, 1 on, -1 (the default): DEEPINFER_SPLIT2 */
  const char* isa;     /* NULL: DEEPINFER_ISA, or else the best of this CPU; "ref", "avx2", ... */
  const deepinfer_executor* executor; /* NULL: threads of the context's own */
} deepinfer_context_options;

/* The defaults. */
#define DEEPINFER_CONTEXT_OPTIONS_INIT \
  { sizeof(deepinfer_context_options), 0, -1, -1, NULL, NULL }

/* `options` may be NULL: the defaults. */
DEEPINFER_API deepinfer_status deepinfer_context_create(const deepinfer_context_options* options,
                                                        deepinfer_context** out) DEEPINFER_NOEXCEPT;
/* NULL is fine, here and in the other functions that end handles. */
DEEPINFER_API void deepinfer_context_destroy(deepinfer_context* context) DEEPINFER_NOEXCEPT;
DEEPINFER_API deepinfer_status deepinfer_context_num_threads(const deepinfer_context* context,
                                                             int32_t* out) DEEPINFER_NOEXCEPT;
/* The name of the instruction set; lives as long as the library. */
DEEPINFER_API deepinfer_status deepinfer_context_isa(const deepinfer_context* context,
                                                     const char** out) DEEPINFER_NOEXCEPT;

/* Weights */

/* A weight [n, k], or e of them stacked [e, n, k]. */
typedef struct deepinfer_weight deepinfer_weight;

/* Names no group: the weight is not stacked. */
#define DEEPINFER_NO_GROUP INT64_MIN

typedef struct deepinfer_weight_info {
  size_t struct_size;
  deepinfer_dtype dtype; /* of its codes; fields past the struct's size are not written */
  int64_t groups;        /* DEEPINFER_NO_GROUP: not stacked */
  int64_t n;
  int64_t k; /* values, not bytes */
} deepinfer_weight_info;

/* codes: F8_E4M3FN [n, k] or [e, n, k], or F4_E2M1X2 with k / 2 bytes; dense.
 * scales: one e8m0 byte per row and 32 k, U8, F8_E8M0 or I16 (pairs), [n, c] or [e, n, c], dense;
 * columns past ceil(k / 32) bytes are ignored. Rows of a 32-row block of F8_E4M3FN share a scale.
 * `name` is used in messages; NULL: "weight". */
DEEPINFER_API deepinfer_status deepinfer_weight_prepare(const deepinfer_tensor* codes,
                                                        const deepinfer_tensor* scales,
                                                        const char* name,
                                                        deepinfer_weight** out) DEEPINFER_NOEXCEPT;
/* Only for weights of deepinfer_weight_prepare(), not for those of a model. */
DEEPINFER_API void deepinfer_weight_destroy(deepinfer_weight* weight) DEEPINFER_NOEXCEPT;
DEEPINFER_API deepinfer_status deepinfer_weight_describe(
    const deepinfer_weight* weight, deepinfer_weight_info* out) DEEPINFER_NOEXCEPT;

typedef struct deepinfer_kernel_scale_info {
  size_t struct_size;
  int32_t fits;   /* 0: these scales do not fit ("none"), and the other fields are 0 */
  int64_t groups; /* 1 when not stacked */
  int64_t rows;   /* of each group: ceil(n / 32) of F8_E4M3FN, n of F4_E2M1X2 */
  int64_t columns;
} deepinfer_kernel_scale_info;

/* The scales that kernels take of the arguments of deepinfer_weight_prepare(): first `out`, then
 * groups * rows * columns bytes into `bytes`, which has room for `capacity`; NULL: only `out`. That
 * scales do not fit is an answer, not an error. Reads scales only. */
DEEPINFER_API deepinfer_status deepinfer_kernel_scale(const deepinfer_tensor* codes,
                                                      const deepinfer_tensor* scales,
                                                      deepinfer_kernel_scale_info* out,
                                                      uint8_t* bytes,
                                                      size_t capacity) DEEPINFER_NOEXCEPT;

/* Models: many weights by name. */

typedef struct deepinfer_checkpoint deepinfer_checkpoint;
typedef struct deepinfer_model deepinfer_model;

/* A safetensors file, an index, or a folder with either; the files are mapped. */
DEEPINFER_API deepinfer_status
deepinfer_checkpoint_open(const char* path, deepinfer_checkpoint** out) DEEPINFER_NOEXCEPT;
DEEPINFER_API void deepinfer_checkpoint_close(deepinfer_checkpoint* checkpoint) DEEPINFER_NOEXCEPT;

/* Prepares every fp8 and fp4 weight that kernels can take; none with the switch `gemm` off. The
 * checkpoint must outlive the model. */
DEEPINFER_API deepinfer_status deepinfer_prepare_checkpoint(
    const deepinfer_context* context, const deepinfer_checkpoint* checkpoint,
    deepinfer_model** out) DEEPINFER_NOEXCEPT;
/* The same over a list of `count` names, codes and scales, as for deepinfer_weight_prepare(). What
 * does not fit, be it a tensor's type or scales that are NULL, is refused (deepinfer_model_refusal)
 * and no error. */
DEEPINFER_API deepinfer_status deepinfer_prepare_model(const deepinfer_context* context,
                                                       const char* const* names,
                                                       const deepinfer_tensor* const* codes,
                                                       const deepinfer_tensor* const* scales,
                                                       int64_t count,
                                                       deepinfer_model** out) DEEPINFER_NOEXCEPT;
DEEPINFER_API void deepinfer_model_destroy(deepinfer_model* model) DEEPINFER_NOEXCEPT;

/* How many weights were prepared, and how many refused. */
DEEPINFER_API deepinfer_status deepinfer_model_count(const deepinfer_model* model,
                                                     int64_t* out) DEEPINFER_NOEXCEPT;
DEEPINFER_API deepinfer_status deepinfer_model_num_refused(const deepinfer_model* model,
                                                           int64_t* out) DEEPINFER_NOEXCEPT;
/* Number `index` by name. Names, reasons and weights live as long as the model. */
DEEPINFER_API deepinfer_status
deepinfer_model_weight(const deepinfer_model* model, int64_t index, const char** name,
                       const deepinfer_weight** weight) DEEPINFER_NOEXCEPT;
DEEPINFER_API deepinfer_status deepinfer_model_refusal(const deepinfer_model* model, int64_t index,
                                                       const char** name,
                                                       const char** reason) DEEPINFER_NOEXCEPT;
/* *out is NULL when no weight has this name: an answer, not an error. */
DEEPINFER_API deepinfer_status deepinfer_model_find(const deepinfer_model* model, const char* name,
                                                    const deepinfer_weight** out)
    DEEPINFER_NOEXCEPT;

/* Questions: *out is 1 or 0. A weight that is NULL is one that was not prepared. */

/* Whether the call deepinfer_gemm() with these can be computed here; NULL or misfit a and sfa: 0.
 */
DEEPINFER_API deepinfer_status deepinfer_supported(const deepinfer_context* context,
                                                   const deepinfer_tensor* a,
                                                   const deepinfer_tensor* sfa, int64_t block_k,
                                                   const deepinfer_weight* b, int64_t k, int64_t n,
                                                   int32_t* out) DEEPINFER_NOEXCEPT;
DEEPINFER_API deepinfer_status deepinfer_has_kernel(const deepinfer_context* context,
                                                    const deepinfer_weight* w,
                                                    int32_t* out) DEEPINFER_NOEXCEPT;
/* Whether n columns are first divided in two halves: `split2` is on and n % 256 == 0. */
DEEPINFER_API deepinfer_status deepinfer_splits_in_two(const deepinfer_context* context, int64_t n,
                                                       int32_t* out) DEEPINFER_NOEXCEPT;
/* The module's own gates: k % 128 == 0 and n % 32 == 0; for linear_qdq_gated fp4, `split2`, n % 256
 * == 0. */
DEEPINFER_API int32_t deepinfer_fits_module_gate(int64_t k, int64_t n) DEEPINFER_NOEXCEPT;
DEEPINFER_API deepinfer_status deepinfer_fits_module_gated(const deepinfer_context* context,
                                                           const deepinfer_weight* w,
                                                           int32_t* out) DEEPINFER_NOEXCEPT;

/* y = x . w^T. Matrices have rank 2, and elements of a row lie side by side; rows may be strided.
 * Nothing outside m rows and n columns of the output is written, which overlaps no input. m = 0 or
 * n = 0 is success and touches nothing. */

/* d [m, n] BF16 or F32 (rounded to bf16 and widened) = a . b^T of quantized activations: a
 * F8_E4M3FN [m, k]; sfa [m, c] with c at least ceil(k / block_k) scales: U8, F8_E8M0, I16 (pairs)
 * or F32, whose columns may be strided too (not those of I16); block_k is 32 or 128. */
DEEPINFER_API deepinfer_status deepinfer_gemm(const deepinfer_context* context,
                                              const deepinfer_tensor* a,
                                              const deepinfer_tensor* sfa, int64_t block_k,
                                              const deepinfer_weight* b, int64_t group,
                                              const deepinfer_tensor* d) DEEPINFER_NOEXCEPT;
/* The same with every bit of the f32 sums kept; d is F32. */
DEEPINFER_API deepinfer_status deepinfer_gemm_f32(const deepinfer_context* context,
                                                  const deepinfer_tensor* a,
                                                  const deepinfer_tensor* sfa, int64_t block_k,
                                                  const deepinfer_weight* b, int64_t group,
                                                  const deepinfer_tensor* d) DEEPINFER_NOEXCEPT;

/* y [m, n] BF16 or F32; x [m, k] BF16 or F32 is quantized on the way in: 1x32, powers of two, 224.
 */
DEEPINFER_API deepinfer_status deepinfer_linear_qdq(const deepinfer_context* context,
                                                    const deepinfer_tensor* x,
                                                    const deepinfer_weight* w, int64_t group,
                                                    const deepinfer_tensor* y) DEEPINFER_NOEXCEPT;
/* The same with BF16 x used as it is. */
DEEPINFER_API deepinfer_status deepinfer_linear_raw(const deepinfer_context* context,
                                                    const deepinfer_tensor* x,
                                                    const deepinfer_weight* w, int64_t group,
                                                    const deepinfer_tensor* y) DEEPINFER_NOEXCEPT;
/* linear_qdq for bare bytes: `weight` U8 [n, k] (k / 2 of fp4), `scale` U8 or F8_E8M0, one per
 * block of `format`: "fp8-32x32", "fp8-128x128", "mxfp8" or "mxfp4". A slice of a weight begins
 * `row_offset` rows and `column_offset` columns (a multiple of 32) inside of the first block. */
DEEPINFER_API deepinfer_status deepinfer_linear_qdq_raw(
    const deepinfer_context* context, const deepinfer_tensor* x, const deepinfer_tensor* weight,
    const deepinfer_tensor* scale, const char* format, int64_t row_offset, int64_t column_offset,
    const deepinfer_tensor* y) DEEPINFER_NOEXCEPT;
/* linear_qdq with group `group` when the flag, I32 [1, 1], is exactly 1 as the call runs; otherwise
 * y becomes zeros and no byte of the weight is read. */
DEEPINFER_API deepinfer_status deepinfer_linear_qdq_gated(
    const deepinfer_context* context, const deepinfer_tensor* x, const deepinfer_weight* w,
    int64_t group, const deepinfer_tensor* flag, const deepinfer_tensor* y) DEEPINFER_NOEXCEPT;

/* The module's kernels by name. x [m, k] and y [m, n] are BF16; weight U8 [n, k] of fp8, [n, k / 2]
 * of fp4; scale U8 or F8_E8M0 [ceil(n / 32), ceil(k / 32)] of fp8, [n, k / 32] of fp4. Those named
 * _2core need n % 256 == 0. fp8_linear_raw takes x as it is, the others quantize it. */
#define DEEPINFER_BLOCKQUANT(name)                                                                 \
  DEEPINFER_API deepinfer_status deepinfer_blockquant_##name(                                      \
      const deepinfer_context* context, const deepinfer_tensor* x, const deepinfer_tensor* weight, \
      const deepinfer_tensor* scale, const deepinfer_tensor* y) DEEPINFER_NOEXCEPT
DEEPINFER_BLOCKQUANT(fp8_linear);
DEEPINFER_BLOCKQUANT(fp8_linear_2core);
DEEPINFER_BLOCKQUANT(fp8_linear_raw);
DEEPINFER_BLOCKQUANT(fp8_linear_raw_2core);
DEEPINFER_BLOCKQUANT(fp4_linear);
DEEPINFER_BLOCKQUANT(fp4_linear_2core);
#undef DEEPINFER_BLOCKQUANT
/* Runs when the flag, I32 [1, 1], is exactly 1; else zeros. */
DEEPINFER_API deepinfer_status deepinfer_blockquant_fp4_linear_2core_gated(
    const deepinfer_context* context, const deepinfer_tensor* x, const deepinfer_tensor* weight,
    const deepinfer_tensor* scale, const deepinfer_tensor* flag,
    const deepinfer_tensor* y) DEEPINFER_NOEXCEPT;

/* Exact decoding; tensors are dense. */

/* out F32, of codes' shape: the values of F8_E4M3FN or F4_E2M1X2 codes (two of each byte: the last
 * dimension is twice as long). */
DEEPINFER_API deepinfer_status deepinfer_decode_data(
    const deepinfer_tensor* codes, const deepinfer_tensor* out) DEEPINFER_NOEXCEPT;
/* out F32 [rows, k]: the scale of every value; scales U8, F8_E8M0 or I16 (pairs), [rows, c]. */
DEEPINFER_API deepinfer_status deepinfer_sf_to_scales(
    const deepinfer_tensor* scales, int64_t k, const deepinfer_tensor* out) DEEPINFER_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* DEEPINFER_DEEPINFER_H_ */
