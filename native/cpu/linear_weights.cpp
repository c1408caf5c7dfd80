// Packing a linear layer's weights, and reading rows of them back.
#include "include/kernels.h"
#include "include/linear.h"
#include "runtime/thread_pool.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t panel_width = LinearWeights::panel_width;

// Index of (output, input) in a packed panel, for input 0 of an output, and the steps from there.
struct Place {
  int64_t pair;  // inputs that lie side by side: 2 for bfloat16, else 1

  explicit Place(DType dtype) : pair(dtype == DType::bfloat16 ? 2 : 1) {}
  int64_t operator()(int64_t output, int64_t input) const {
    return (input / pair * panel_width + output) * pair + input % pair;
  }
};

// n elements to n elements of another type, through float.
template <class From, class To>
void convert(const From* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; i += F32::lanes) store_tail(to + i, load_tail(from + i, n - i), n - i);
}
template <class T>
void convert(const T* from, int64_t n, T* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
}

// Call body(zero of the element type) for `dtype`.
template <class Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bfloat16) return body(BF16{});
  if (dtype == DType::float16) return body(F16{});
  body(0.0f);
}

template <class From, class To>
void pack_panel(const LinearWeights& weights, const From* source, int64_t first_row,
                int64_t num_rows, int64_t panel) {
  constexpr int64_t piece = 256;
  const Place place(weights.dtype);
  auto* packed = reinterpret_cast<To*>(weights.data + panel * weights.panel_bytes());
  const int64_t begin = larger(panel * panel_width, first_row);
  const int64_t end = smaller((panel + 1) * panel_width, first_row + num_rows);
  To inputs[piece];
  for (int64_t from = 0; from < weights.in_features; from += piece) {
    const int64_t n = smaller(piece, weights.in_features - from);
    for (int64_t row = begin; row < end; ++row) {
      convert(source + (row - first_row) * weights.in_features + from, n, inputs);
      for (int64_t i = 0; i < n; ++i)
        packed[place(row - panel * panel_width, from + i)] = inputs[i];
    }
  }
}

}  // namespace

void pack_linear(const LinearWeights& weights, const void* source, DType source_dtype,
                 int64_t first_row, int64_t num_rows) {
  const int64_t first_panel = first_row / panel_width;
  const int64_t panels = ceil_div(first_row + num_rows, panel_width) - first_panel;
  with_type(weights.dtype, [&](auto to) {
    with_type(source_dtype, [&](auto from) {
      parallel_for(panels, [&](int64_t i) {
        pack_panel<decltype(from), decltype(to)>(weights,
                                                 static_cast<const decltype(from)*>(source),
                                                 first_row, num_rows, first_panel + i);
      });
    });
  });
}

void lookup_rows(const LinearWeights& weights, const int32_t* ids, int64_t num_ids, float* out) {
  const Place place(weights.dtype);
  // A row is scattered over a panel: about 10 us each from memory.
  constexpr int64_t rows_per_chunk = 4;
  with_type(weights.dtype, [&](auto type) {
    parallel_for(ceil_div(num_ids, rows_per_chunk), [&](int64_t chunk) {
      const int64_t end = smaller((chunk + 1) * rows_per_chunk, num_ids);
      for (int64_t i = chunk * rows_per_chunk; i < end; ++i) {
        const int64_t panel = ids[i] / panel_width;
        const auto* packed =
            reinterpret_cast<const decltype(type)*>(weights.data + panel * weights.panel_bytes());
        float* row = out + i * weights.in_features;
        for (int64_t input = 0; input < weights.in_features; ++input)
          store_partial(row + input,
                        load_partial(packed + place(ids[i] - panel * panel_width, input), 1), 1);
      }
    });
  });
}

}  // namespace quire::QUIRE_ISA
