// Before attention: normalise and rotate queries and keys, store keys and values, or latents, in
// the cache.
#include "cpu/cache_int4.h"
#include "cpu/norm_rows.h"
#include "include/kernels.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

// The queries or the keys of a token: `heads` heads.
void normalize(const AttentionLayer& layer, const float* weight, int64_t heads, float* x) {
  const int64_t dim = layer.head_dim;
  if (layer.qk_norm == QKNorm::rms_of_rows)
    return rms_norm_row(x, weight, layer.norm_eps, heads * dim, x);
  for (int64_t i = 0; i < heads * dim; i += dim) {
    if (layer.qk_norm == QKNorm::rms_of_heads)
      rms_norm_row(x + i, weight, layer.norm_eps, dim, x + i);
    else
      layer_norm_row(x + i, weight + i, nullptr, layer.norm_eps, dim, x + i);
  }
}

// `count` pairs (x[i], x[i + half]) by the angles whose cosines and sines are given.
void rotate(float* x, const float* cosines, const float* sines, int64_t count, int64_t half) {
  for (int64_t i = 0; i < count; i += F32::lanes) {
    const int64_t n = count - i;
    const F32 first = load_tail(x + i, n), second = load_tail(x + half + i, n);
    const F32 cosine = load_tail(cosines + i, n), sine = load_tail(sines + i, n);
    store_tail(x + i, first * cosine - second * sine, n);
    store_tail(x + half + i, second * cosine + first * sine, n);
  }
}

// One head of a token, each section by its own position.
void rotate_head(const AttentionLayer& layer, const AttentionBatch& batch, int64_t token,
                 float* x) {
  int64_t first = 0;
  for (int64_t section = 0; section < layer.num_sections; ++section) {
    const int64_t position = batch.positions[section * batch.num_tokens + token];
    const int64_t angle = position * layer.half + first, count = layer.sections[section];
    rotate(x + first, layer.cosines + angle, layer.sines + angle, count, layer.half);
    first += count;
  }
}

// All queries of a token.
void scale_queries(const AttentionLayer& layer, int64_t position, float* x) {
  const F32 scale = set1(layer.query_scales[position]);
  const int64_t elements = layer.num_heads * layer.head_dim;
  for (int64_t i = 0; i < elements; i += F32::lanes)
    store_tail(x + i, load_tail(x + i, elements - i) * scale, elements - i);
}

// One token's head on its way to a slot.
struct Entry {
  const float *key, *value;  // (H,)
  int64_t head_dim, block_size;
};

// Round one head to T, divided by its scales; keys are spread over the block, element by element.
template <class T>
void store_head(const Entry& entry, float k_scale, float v_scale, T* k, T* v) {
  const F32 k_divisor = set1(k_scale), v_divisor = set1(v_scale);
  for (int64_t i = 0; i < entry.head_dim; i += F32::lanes) {
    const int64_t n = smaller<int64_t>(F32::lanes, entry.head_dim - i);
    T rounded[F32::lanes];
    store(rounded, load_tail(entry.key + i, n) / k_divisor);
    for (int64_t lane = 0; lane < n; ++lane) k[(i + lane) * entry.block_size] = rounded[lane];
    store_tail(v + i, load_tail(entry.value + i, n) / v_divisor, n);
  }
}

// The scale of a head in int8: max |x| / 127, rounded up to bfloat16 so that no code saturates. NaN
// where x is not finite.
BF16 scale_of(const float* x, int64_t n) {
  F32 highest = zero(), poison = zero();
  for (int64_t i = 0; i < n; i += F32::lanes) {
    const F32 v = load_tail(x + i, n - i);
    highest = max(abs(v), highest);
    poison = fma(v, zero(), poison);
  }
  const float scale = max(highest) / 127.0f + sum(poison);
  return scale == scale ? away_from_zero(scale) : BF16{0x7fc0};
}

template <class T>
void store_slot(const AttentionLayer& layer, const KVBlocks& blocks, int64_t slot, int64_t head,
                const float* key, const float* value) {
  const int64_t head_size = layer.head_dim * blocks.block_size;
  const int64_t block = slot / blocks.block_size, offset = slot % blocks.block_size;
  const int64_t k_head = block * blocks.stride + head;
  const int64_t v_head = k_head + layer.num_kv_heads;
  T* k = static_cast<T*>(blocks.data) + k_head * head_size + offset;
  T* v = static_cast<T*>(blocks.data) + v_head * head_size + offset * layer.head_dim;
  const Entry entry{key, value, layer.head_dim, blocks.block_size};
  if (!blocks.scales) return store_head(entry, 1.0f, 1.0f, k, v);
  BF16& k_scale = blocks.scales[k_head * blocks.block_size + offset];
  BF16& v_scale = blocks.scales[v_head * blocks.block_size + offset];
  k_scale = scale_of(key, layer.head_dim);
  v_scale = scale_of(value, layer.head_dim);
  store_head(entry, divisor_of(k_scale), divisor_of(v_scale), k, v);
}

// The same in 4 bits: two codes a byte, a scale and a minimum for each group.
void store_slot_int4(const AttentionLayer& layer, const KVBlocks& blocks, int64_t slot,
                     int64_t head, const float* key, const float* value) {
  constexpr int64_t half = int4_group / 2;
  const int64_t size = blocks.block_size, pairs = layer.head_dim / 2;
  const int64_t block = slot / size, offset = slot % size;
  const int64_t k_head = block * blocks.stride + head, v_head = k_head + layer.num_kv_heads;
  Int4Pair* k = static_cast<Int4Pair*>(blocks.data) + k_head * pairs * size + offset;
  Int4Pair* v = static_cast<Int4Pair*>(blocks.data) + v_head * pairs * size + offset * pairs;
  BF16* k_scales = blocks.scales + k_head * blocks.scales_per_head * size + offset;
  BF16* v_scales = blocks.scales + v_head * blocks.scales_per_head * size + offset;
  const auto pair = [](int8_t first, int8_t second) {
    return Int4Pair{static_cast<uint8_t>(first | second << 4)};
  };
  for (int64_t group = 0; group < layer.head_dim / int4_group; ++group) {
    int8_t codes[int4_group];
    const Int4Scales of_key = encode_group(key + group * int4_group, codes);
    k_scales[2 * group * size] = of_key.scale;
    k_scales[(2 * group + 1) * size] = of_key.minimum;
    for (int64_t i = 0; i < half; ++i)
      k[(group * half + i) * size] = pair(codes[2 * i], codes[2 * i + 1]);
    const Int4Scales of_value = encode_group(value + group * int4_group, codes);
    v_scales[2 * group * size] = of_value.scale;
    v_scales[(2 * group + 1) * size] = of_value.minimum;
    for (int64_t i = 0; i < half; ++i) v[group * half + i] = pair(codes[i], codes[i + half]);
  }
}

// One row, which is both.
template <class T>
void store_latent(const KVBlocks& blocks, int64_t slot, const float* row, int64_t dim) {
  const int64_t block = slot / blocks.block_size, offset = slot % blocks.block_size;
  const int64_t place = block * blocks.stride * blocks.block_size + offset;
  float scale = 1.0f;
  if (blocks.scales) {
    blocks.scales[place] = scale_of(row, dim);
    scale = divisor_of(blocks.scales[place]);
  }
  T* to = static_cast<T*>(blocks.data) + place * dim;
  for (int64_t i = 0; i < dim; i += F32::lanes)
    store_tail(to + i, load_tail(row + i, dim - i) / set1(scale), dim - i);
}

void store_any_latent(const KVBlocks& blocks, int64_t slot, const float* row, int64_t dim) {
  switch (blocks.type) {
    case KVType::float32:
      return store_latent<float>(blocks, slot, row, dim);
    case KVType::float16:
      return store_latent<F16>(blocks, slot, row, dim);
    case KVType::bfloat16:
      return store_latent<BF16>(blocks, slot, row, dim);
    case KVType::e4m3:
      return store_latent<E4M3>(blocks, slot, row, dim);
    default:
      return store_latent<int8_t>(blocks, slot, row, dim);
  }
}

void store_any(const AttentionLayer& layer, const KVBlocks& blocks, int64_t slot, int64_t head,
               const float* key, const float* value) {
  switch (blocks.type) {
    case KVType::float32:
      return store_slot<float>(layer, blocks, slot, head, key, value);
    case KVType::float16:
      return store_slot<F16>(layer, blocks, slot, head, key, value);
    case KVType::bfloat16:
      return store_slot<BF16>(layer, blocks, slot, head, key, value);
    case KVType::e4m3:
      return store_slot<E4M3>(layer, blocks, slot, head, key, value);
    case KVType::int8:
      return store_slot<int8_t>(layer, blocks, slot, head, key, value);
    case KVType::int4:
      return store_slot_int4(layer, blocks, slot, head, key, value);
  }
}

}  // namespace

void rope_and_cache(const AttentionLayer& layer, const KVBlocks& blocks,
                    const AttentionBatch& batch, float* qkv) {
  const int64_t heads = layer.num_heads + layer.num_kv_heads;
  const int64_t row_elements = (heads + layer.num_kv_heads) * layer.head_dim;
  const int64_t step = larger<int64_t>(1, chunk_elements / row_elements);
  const bool spreads = blocks.type == KVType::int4;
  parallel_for(ceil_div(batch.num_tokens, step), [&](int64_t chunk) {
    const int64_t end = smaller(batch.num_tokens, (chunk + 1) * step);
    for (int64_t token = chunk * step; token < end; ++token) {
      float* row = qkv + token * row_elements;
      if (layer.q_norm) {
        normalize(layer, layer.q_norm, layer.num_heads, row);
        normalize(layer, layer.k_norm, layer.num_kv_heads, row + layer.num_heads * layer.head_dim);
      }
      for (int64_t head = 0; head < heads; ++head) {
        float* x = row + head * layer.head_dim;
        if (layer.cosines) rotate_head(layer, batch, token, x);
        if (spreads) rotate_by_hadamard(x, layer.head_dim);
      }
      if (layer.query_scales) scale_queries(layer, batch.positions[token], row);
      const int64_t slot = batch.slot_mapping[token];
      if (slot < 0) continue;
      for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
        const float* key = row + (layer.num_heads + head) * layer.head_dim;
        store_any(layer, blocks, slot, head, key, key + layer.num_kv_heads * layer.head_dim);
      }
    }
  });
}

void store_latents(const LatentLayer& latent, const KVBlocks& blocks, const AttentionBatch& batch,
                   float* latents) {
  const AttentionLayer& layer = latent.attention;
  const int64_t dim = layer.head_dim, step = larger<int64_t>(1, chunk_elements / dim);
  parallel_for(ceil_div(batch.num_tokens, step), [&](int64_t chunk) {
    const int64_t end = smaller(batch.num_tokens, (chunk + 1) * step);
    for (int64_t token = chunk * step; token < end; ++token) {
      float* row = latents + token * dim;
      rms_norm_row(row, latent.norm, latent.eps, layer.value_dim, row);
      rotate_head(layer, batch, token, row + layer.value_dim);
      const int64_t slot = batch.slot_mapping[token];
      if (slot >= 0) store_any_latent(blocks, slot, row, dim);
    }
  });
}

void split_queries(const LatentLayer& latent, const AttentionBatch& batch, const float* queries,
                   int64_t first_head, float* keyed, float* rows) {
  const AttentionLayer& layer = latent.attention;
  const int64_t heads = layer.num_heads, rotated = 2 * layer.half;
  const int64_t given = latent.key_dim + rotated;
  const int64_t step = larger<int64_t>(1, chunk_elements / (heads * given));
  parallel_for(ceil_div(batch.num_tokens, step), [&](int64_t chunk) {
    const int64_t end = smaller(batch.num_tokens, (chunk + 1) * step);
    for (int64_t token = chunk * step; token < end; ++token)
      for (int64_t head = 0; head < heads; ++head) {
        const float* from = queries + (token * latent.num_heads + first_head + head) * given;
        float* to = keyed + (head * batch.num_tokens + token) * latent.key_dim;
        memcpy(to, from, static_cast<size_t>(latent.key_dim) * sizeof(float));
        float* turned = rows + (token * heads + head) * layer.head_dim + layer.value_dim;
        memcpy(turned, from + latent.key_dim, static_cast<size_t>(rotated) * sizeof(float));
        rotate_head(layer, batch, token, turned);
      }
  });
}

}  // namespace quire::QUIRE_ISA
