// The nearest of a table of vectors: sums that depend on no scale once, then every scale asked for.
// On the caller's thread alone: a program that quantizes has threads of its own.
#include "include/vector_search.h"

#include <math.h>

#include "include/kernels.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t chunk = VectorSearch::chunk;

constexpr int64_t max_width = 8;
// Vectors that share a part of the table while it is in L1.
constexpr int64_t together = 64;

// `chunk` vectors of the table, input by input, and the squares of their values.
struct Part {
  float values[max_width][chunk];
  float squares[max_width][chunk];

  Part(const VectorSearch& search, int64_t first) {
    for (int64_t i = 0; i < search.width; ++i)
      for (int64_t j = 0; j < chunk; j += F32::lanes) {
        const F32 value = load(search.table + i * search.count + first + j);
        store(values[i] + j, value);
        store(squares[i] + j, value * value);
      }
  }
};

// Of one vector and `chunk` of the table: squares, and products times -2.
struct Sums {
  float squares[chunk];
  float products[chunk];
};

template <int64_t width, bool flipped>
void add_up(const Part& part, const float* x, const float* weights, Sums& sums) {
  F32 factors[width], counts[width];
  for (int64_t i = 0; i < width; ++i) {
    counts[i] = set1(weights[i]);
    factors[i] = set1(-2.0f * (weights[i] * x[i]));
  }
  for (int64_t j = 0; j < chunk; j += F32::lanes) {
    F32 squares = zero(), products = zero(), least = zero();
    for (int64_t i = 0; i < width; ++i) {
      squares = fma(counts[i], load(part.squares[i] + j), squares);
      if (flipped) {
        // Of products times -2 the greatest is the one whose other sign costs least.
        const F32 product = factors[i] * load(part.values[i] + j);
        products = products + product;
        least = i == 0 ? product : max(product, least);
      } else {
        products = fma(factors[i], load(part.values[i] + j), products);
      }
    }
    if (flipped) products = fma(-2.0f, least, products);
    store(sums.squares + j, squares);
    store(sums.products + j, products);
  }
}

void add_up(const VectorSearch& search, const Part& part, int64_t vector, Sums& sums) {
  const float* x = search.x + vector * search.width;
  const float* weights = search.weights + vector * search.width;
  const bool flipped = search.flipped[vector];
  if (search.width == 4)
    flipped ? add_up<4, true>(part, x, weights, sums) : add_up<4, false>(part, x, weights, sums);
  else
    flipped ? add_up<8, true>(part, x, weights, sums) : add_up<8, false>(part, x, weights, sums);
}

// The least of scale * squares + products; scales are positive, so it is that of the least cost.
float least_of(const Sums& sums, float scale) {
  static_assert(chunk % (4 * F32::lanes) == 0);
  const F32 factor = set1(scale);
  F32 best[4] = {set1(INFINITY), set1(INFINITY), set1(INFINITY), set1(INFINITY)};
  for (int64_t j = 0; j < chunk; j += 4 * F32::lanes)
    for (int k = 0; k < 4; ++k) {
      const int64_t at = j + k * F32::lanes;
      best[k] = min(fma(factor, load(sums.squares + at), load(sums.products + at)), best[k]);
    }
  const F32 all = min(min(best[0], best[1]), min(best[2], best[3]));
  return -max(zero() - all);
}

// The first of the least, if it is below `least`.
void find_least(const Sums& sums, float scale, int64_t first, float& least, int32_t& index) {
  const F32 factor = set1(scale), step = set1(static_cast<float>(F32::lanes));
  F32 best = set1(least), at = set1(-1.0f), current = zero();
  for (int64_t j = 0; j < chunk; j += F32::lanes, current = current + step) {
    const F32 cost = fma(factor, load(sums.squares + j), load(sums.products + j));
    const Mask better = less(cost, best);
    best = select(better, cost, best);
    at = select(better, current, at);
  }
  float costs[F32::lanes], places[F32::lanes];
  store(costs, best);
  store(places, at);
  int64_t found = -1;
  for (int lane = 0; lane < F32::lanes; ++lane) {
    const int64_t place = static_cast<int64_t>(places[lane]) + lane;
    if (places[lane] < 0.0f || costs[lane] > least) continue;
    if (costs[lane] < least || found < 0 || place < found) found = place;
    least = costs[lane];
  }
  if (found >= 0) index = static_cast<int32_t>(first + found);
}

}  // namespace

void vector_costs(const VectorSearch& search, const float* scales, int64_t num_scales,
                  float* costs) {
  for (int64_t i = 0; i < search.num * num_scales; ++i) costs[i] = INFINITY;
  for (int64_t begin = 0; begin < search.num; begin += together) {
    const int64_t end = smaller(begin + together, search.num);
    for (int64_t first = 0; first < search.count; first += chunk) {
      const Part part(search, first);
      for (int64_t v = begin; v < end; ++v) {
        Sums sums;
        add_up(search, part, v, sums);
        for (int64_t i = v * num_scales; i < (v + 1) * num_scales; ++i)
          costs[i] = smaller(costs[i], least_of(sums, scales[i]));
      }
    }
  }
  for (int64_t i = 0; i < search.num * num_scales; ++i) costs[i] *= scales[i];
}

void nearest_vectors(const VectorSearch& search, const float* scales, int32_t* indices,
                     float* sums_of) {
  for (int64_t begin = 0; begin < search.num; begin += together) {
    const int64_t end = smaller(begin + together, search.num);
    float least[together];
    for (float& cost : least) cost = INFINITY;
    for (int64_t v = begin; v < end; ++v) indices[v] = 0;
    for (int64_t first = 0; first < search.count; first += chunk) {
      const Part part(search, first);
      for (int64_t v = begin; v < end; ++v) {
        Sums sums;
        add_up(search, part, v, sums);
        const float before = least[v - begin];
        find_least(sums, scales[v], first, least[v - begin], indices[v]);
        if (first > 0 && !(least[v - begin] < before)) continue;
        const int64_t place = indices[v] - first;
        sums_of[2 * v] = sums.squares[place];
        sums_of[2 * v + 1] = -0.5f * sums.products[place];
      }
    }
  }
}

}  // namespace quire::QUIRE_ISA
