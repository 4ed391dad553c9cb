#include "ops/call.h"

#include <array>

#include "ops/grouped.h"

namespace deepinfer::ops {
namespace {

/// One call with names for its messages.
struct Call {
  const Context& context;
  Arguments arguments;
  Store store = Store::kOnce;

  Call(const Context& where, const char* name) : context(where), arguments(name) {}

  /// Checks y and what it may not overlap; false when there is nothing to compute.
  bool check(const char* x_name, const Extent& x, std::int64_t m, const WeightView& w,
             const char* y_name, const MutableMatrixView& y) const {
    const Extent out = arguments.output(y_name, y, m, w.n);
    if (m == 0 || w.n == 0) return false;
    arguments.disjoint(x_name, x, y_name, out);
    arguments.disjoint(w, y_name, out);
    return true;
  }

  void run(const GemmInput& input, const Weight& w, const MutableMatrixView& y, bool halves) const {
    std::array<GemmTask, 2> tasks;
    tasks.fill({.w = &w, .y = y, .store = store});
    if (halves) {
      tasks[0].num_columns = tasks[1].num_columns = w.n() / 2;
      tasks[1].first_column = w.n() / 2;
    }
    gemm(context, thread_workspace(), input, std::span(tasks).first(halves ? 2 : 1));
  }
};

}  // namespace

void multiply_codes(const Context& context, const char* name, const QuantizedView& a,
                    const PreparedWeight& b, const MutableMatrixView& d,
                    std::optional<std::int64_t> group, Store store, bool halves) {
  Call call(context, name);
  call.store = store;
  if (b.element() == Element::kBf16) call.arguments.refuse("b", "is bf16, expected fp8 or fp4");
  const Weight& w = b.at(group);
  const Extent in = call.arguments.input("a", a, w.k(), w.n());
  if (!call.check("a", in, a.rows, w.view(), "d", d)) return;
  call.arguments.disjoint("a's scales", call.arguments.scales_of("a", a), "d",
                          call.arguments.output("d", d, a.rows, w.n()));
  const bool fp4 = w.view().element == Element::kE2m1;
  call.run({.codes = &a, .requantize = fp4}, w, d, halves);
}

void multiply_rows(const Context& context, const char* name, const MatrixView& x, const Weight& w,
                   const MutableMatrixView& y, Activations activations, bool halves) {
  const Call call(context, name);
  const Extent in = call.arguments.input("x", x, w.k(), w.n());
  if (!call.check("x", in, x.rows, w.view(), "y", y)) return;
  call.run({.x = x, .activations = activations}, w, y, halves);
}

/// multiply_rows() if the flag says so, else zeros.
void multiply_gated(const Context& context, const char* name, const MatrixView& x, const Weight& w,
                    const std::int32_t* flag, const MutableMatrixView& y, bool halves) {
  const Call call(context, name);
  if (flag == nullptr) call.arguments.refuse("flag", "is null");
  if (reinterpret_cast<std::uintptr_t>(flag) % alignof(std::int32_t) != 0) {
    call.arguments.refuse("flag", "is not aligned to its elements");
  }
  const Extent in = call.arguments.input("x", x, w.k(), w.n());
  if (!call.check("x", in, x.rows, w.view(), "y", y)) return;
  const auto flag_begin = reinterpret_cast<std::uintptr_t>(flag);
  call.arguments.disjoint("flag", {flag_begin, flag_begin + sizeof(*flag)}, "y",
                          call.arguments.output("y", y, x.rows, w.n()));
  if (*flag != 1) {
    zero(y);
    return;
  }
  call.run({.x = x, .activations = Activations::kQuantize224}, w, y, halves);
}

}  // namespace deepinfer::ops
