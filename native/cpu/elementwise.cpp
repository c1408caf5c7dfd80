// What is done to each element alone: products, sums, soft caps.
#include "include/kernels.h"
#include "runtime/thread_pool.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

template <class Function>
void each_vector(int64_t n, const Function& f) {
  parallel_for(ceil_div(n, chunk_elements), [&](int64_t chunk) {
    const int64_t end = smaller(n, (chunk + 1) * chunk_elements);
    for (int64_t i = chunk * chunk_elements; i < end; i += F32::lanes) f(i, end - i);
  });
}

}  // namespace

void scale(const float* x, float factor, int64_t n, float* out) {
  each_vector(n, [=](int64_t i, int64_t left) {
    store_tail(out + i, load_tail(x + i, left) * set1(factor), left);
  });
}

void soft_cap(const float* x, float cap, int64_t n, float* out) {
  each_vector(n, [=](int64_t i, int64_t left) {
    store_tail(out + i, soft_capped(load_tail(x + i, left), cap), left);
  });
}

void add_residual(const float* x, int64_t n, float* residual, float* out) {
  each_vector(n, [=](int64_t i, int64_t left) {
    const F32 total = load_tail(residual + i, left) + load_tail(x + i, left);
    store_tail(residual + i, total, left);
    if (out) store_tail(out + i, total, left);
  });
}

}  // namespace quire::QUIRE_ISA
