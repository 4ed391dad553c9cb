/* A client in C99: the header alone, one weight, one call. */
#include <string.h>

#include "deepinfer/deepinfer.h"

enum { kM = 2, kN = 3, kK = 32 };

static deepinfer_tensor matrix(void* data, deepinfer_dtype dtype, int64_t rows, int64_t columns) {
  deepinfer_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.data = data;
  t.dtype = dtype;
  t.rank = 2;
  t.shape[0] = rows;
  t.shape[1] = columns;
  return t;
}

/* x is all ones, w is 1, 2, 4 by row: y is 32, 64, 128. Returns 0, or the line that failed. */
int c_api_client(void);
int c_api_client(void) {
  static const float expected[kN] = {32.0F, 64.0F, 128.0F};
  float x[kM * kK];
  float y[kM * kN];
  uint8_t codes[kN * kK];
  uint8_t scales[kN] = {127, 127, 127};
  deepinfer_context_options options = DEEPINFER_CONTEXT_OPTIONS_INIT;
  deepinfer_context* context = NULL;
  deepinfer_weight* weight = NULL;
  deepinfer_tensor x_tensor = matrix(x, DEEPINFER_F32, kM, kK);
  deepinfer_tensor y_tensor = matrix(y, DEEPINFER_F32, kM, kN);
  deepinfer_tensor codes_tensor = matrix(codes, DEEPINFER_F8_E4M3FN, kN, kK);
  deepinfer_tensor scales_tensor = matrix(scales, DEEPINFER_U8, kN, 1);
  int i;
  for (i = 0; i < kM * kK; ++i) x[i] = 1.0F;
  for (i = 0; i < kN * kK; ++i) codes[i] = (uint8_t)(0x38 + 8 * (i / kK)); /* 2^(i / k) */
  options.num_threads = 1;
  if (deepinfer_context_create(&options, &context) != DEEPINFER_OK) return __LINE__;
  if (deepinfer_weight_prepare(&codes_tensor, &scales_tensor, "w", &weight) != DEEPINFER_OK) {
    return __LINE__;
  }
  if (deepinfer_linear_qdq(context, &x_tensor, weight, DEEPINFER_NO_GROUP, &y_tensor) !=
      DEEPINFER_OK) {
    return __LINE__;
  }
  for (i = 0; i < kM * kN; ++i) {
    if (y[i] != expected[i % kN]) return __LINE__;
  }
  if (deepinfer_linear_qdq(context, &x_tensor, weight, 0, &y_tensor) !=
      DEEPINFER_INVALID_ARGUMENT) {
    return __LINE__;
  }
  if (strstr(deepinfer_last_error(), "group 0") == NULL) return __LINE__;
  deepinfer_weight_destroy(weight);
  deepinfer_context_destroy(context);
  return 0;
}
