// Storage conversions and elementary functions over arrays.
#include "include/kernels.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

template <class T>
void through(const float* x, int64_t n, float* out) {
  T stored[F32::lanes];
  for (int64_t i = 0; i < n; i += F32::lanes) {
    store_tail(stored, load_tail(x + i, n - i), n - i);
    store_tail(out + i, load_tail(stored, n - i), n - i);
  }
}

}  // namespace

void exp_array(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += F32::lanes)
    store_tail(out + i, exp(load_tail(x + i, n - i)), n - i);
}

void round_trip(const float* x, int64_t n, DType dtype, float* out) {
  if (dtype == DType::bfloat16) return through<BF16>(x, n, out);
  if (dtype == DType::float16) return through<F16>(x, n, out);
  through<float>(x, n, out);
}

}  // namespace quire::QUIRE_ISA
