// Element types of stored data; arithmetic is float everywhere.
#pragma once

#include <cstdint>

namespace quire {

struct BF16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

// OCP FP8: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, NaN is 0x7f and 0xff.
struct E4M3 {
  uint8_t bits;
};

// Two codes of 4 bits, the first in the lower half: an element is scale * code + minimum, of each
// group of elements of a token's head.
struct Int4Pair {
  uint8_t bits;
};

constexpr int64_t int4_group = 32;  // elements that share a scale and a minimum

constexpr float e4m3_unit = 256.0f;  // what a loaded E4M3 is multiplied by; see simd/vec.h
constexpr float e4m3_highest = 448.0f;

enum class DType : int32_t { float32 = 0, float16 = 1, bfloat16 = 2 };

// What K and V are stored as; the order of KV_DTYPE_CODES in quire/kernels/cpu/native.py.
enum class KVType : int32_t {
  float32 = 0,
  float16 = 1,
  bfloat16 = 2,
  e4m3 = 3,
  int8 = 4,
  int4 = 5
};

// The order of quire/kernels/activation.py.
// The last one takes pairs alone: it bounds and shifts the factor, too.
enum class Activation : int32_t {
  silu = 0,
  gelu = 1,
  gelu_tanh = 2,
  quick_gelu = 3,
  clamped_swiglu = 4
};

enum class RouteScores : int32_t { softmax = 0, sigmoid = 1 };

// How a router's logits choose experts: see quire/kernels/moe.py.
struct ExpertRouting {
  int64_t num_experts, top_k;
  RouteScores scores;
  const float* bias;  // (num_experts,), added where experts are chosen; null without
  int64_t num_groups,
      top_groups;      // as many groups of as many experts; those of which some are kept
  int64_t group_best;  // a group counts as the sum of this many of its best
  bool renormalize;
  float scale;
};

}  // namespace quire
