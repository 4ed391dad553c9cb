// Weights for C: prepared from tensors, described, and their kernel scales.
#include <algorithm>

#include "c_api/boundary.h"
#include "c_api/handles.h"
#include "c_api/structs.h"
#include "c_api/tensors.h"

namespace deepinfer::c_api {
namespace {

deepinfer_dtype dtype_of(Element element) {
  switch (element) {
    case Element::kBf16:
      return DEEPINFER_BF16;
    case Element::kE4m3fn:
      return DEEPINFER_F8_E4M3FN;
    case Element::kE2m1:
      return DEEPINFER_F4_E2M1X2;
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer::c_api

using namespace deepinfer;
using c_api::guarded;
using c_api::Refuse;

deepinfer_status deepinfer_weight_prepare(const deepinfer_tensor* codes,
                                          const deepinfer_tensor* scales, const char* name,
                                          deepinfer_weight** out) noexcept {
  return guarded([&] {
    const Refuse refuse("weight_prepare");
    deepinfer_weight*& weight = refuse.non_null("out", out);
    const PackedWeightView view = c_api::Tensors(refuse).packed(codes, scales);
    PreparedWeight prepared = PreparedWeight::prepare(view, name != nullptr ? name : "weight");
    weight = c_api::wrap(c_api::make_handle<PreparedWeight>(std::move(prepared)));
  });
}

void deepinfer_weight_destroy(deepinfer_weight* weight) noexcept { delete c_api::unwrap(weight); }

deepinfer_status deepinfer_weight_describe(const deepinfer_weight* weight,
                                           deepinfer_weight_info* out) noexcept {
  return guarded([&] {
    const Refuse refuse("weight_describe");
    const PreparedWeight& w = c_api::weight_of(refuse, "weight", weight);
    const std::size_t known = c_api::known_bytes(refuse, "out", out);
    deepinfer_weight_info info = {};
    info.dtype = c_api::dtype_of(w.element());
    info.groups = w.stacked() ? w.groups() : DEEPINFER_NO_GROUP;
    info.n = w.n();
    info.k = w.k();
    c_api::write_struct(out, info, known);
  });
}

deepinfer_status deepinfer_kernel_scale(const deepinfer_tensor* codes,
                                        const deepinfer_tensor* scales,
                                        deepinfer_kernel_scale_info* out, uint8_t* bytes,
                                        size_t capacity) noexcept {
  return guarded([&] {
    const Refuse refuse("kernel_scale");
    const std::size_t known = c_api::known_bytes(refuse, "out", out);
    bool agree = false;
    const PackedWeightView view = c_api::Tensors(refuse).packed(codes, scales, &agree);
    const std::optional<KernelScale> scale = agree ? kernel_scale(view) : std::nullopt;
    deepinfer_kernel_scale_info info = {};
    if (scale) {
      info.fits = 1;
      info.groups = view.groups.value_or(1);
      info.rows = scale->rows;
      info.columns = scale->columns;
      if (bytes != nullptr && capacity < scale->bytes.size()) {
        refuse("bytes", "has room for " + std::to_string(capacity) + ", expected " +
                            std::to_string(scale->bytes.size()));
      }
      if (bytes != nullptr) std::copy(scale->bytes.begin(), scale->bytes.end(), bytes);
    }
    c_api::write_struct(out, info, known);
  });
}
