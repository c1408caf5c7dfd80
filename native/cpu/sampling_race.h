// The draw among the tokens that are kept: a race that the smallest number over weight wins.
//
// Numbers belong to tokens, see quire/kernels/sampling.py. Nearly all tokens lose by the upper bits
// of theirs, which a few integer operations give: E >= U, so a token whose U alone is above
// w exp(-best score) cannot win. Logarithms are taken for the few that are left.
#pragma once

#include "cpu/sampling_cut.h"
#include "simd/words.h"

namespace quire::QUIRE_ISA {

// Of one seed and position.
struct Numbers {
  uint32_t keys[4];

  Numbers(uint64_t seed, int64_t position) {
    const uint64_t g = 0x9e3779b97f4a7c15u;
    const uint64_t first = mix(mix(seed + g) + (static_cast<uint64_t>(position) + 1) * g);
    const uint64_t second = mix(first + g);
    keys[0] = static_cast<uint32_t>(first);
    keys[1] = static_cast<uint32_t>(first >> 32);
    keys[2] = static_cast<uint32_t>(second);
    keys[3] = static_cast<uint32_t>(second >> 32);
  }

  // Word 0 or 1 of tokens: 32 bits, or a register of them.
  template <class Ids>
  Ids word(Ids ids, int index) const {
    Ids z = ids + keys[2 * index];
    z = (z ^ (z >> 16)) * 0x7feb352du;
    z = z ^ keys[2 * index + 1];
    z = (z ^ (z >> 15)) * 0x846ca68bu;
    return z ^ (z >> 16);
  }

  // log(E).
  double log_number(int64_t id) const {
    const auto token = static_cast<uint32_t>(id);
    const uint64_t bits = static_cast<uint64_t>(word(token, 0)) << 20 | word(token, 1) >> 12;
    return ::log(-::log1p(-(static_cast<double>(bits) + 0.5) * 0x1p-52));
  }

 private:
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

// The upper 24 bits of the first word are whole numbers of a float. U is at least that many 2^-24.
constexpr int bound_bits = 24;

struct Race {
  const Row& row;
  const Numbers& numbers;
  double temperature, score = -INFINITY;
  int64_t winner = -1;

  // Whether the token, if it is `kept(id)`, is in front of all that were; then it is the winner.
  template <class IsKept>
  bool enter(int64_t id, IsKept kept) {
    const double x = (static_cast<double>(row.logits[id]) - row.highest) / temperature;
    const double its = x - numbers.log_number(id);
    if (its < score || (its == score && id > winner) || !kept(id)) return false;
    score = its;
    winner = id;
    return true;
  }
};

// The winner of what is kept, found among all tokens.
inline int32_t race_all(const Row& row, const Numbers& numbers, float temperature,
                        const Kept& all) {
  const auto kept = [&](int64_t id) { return all.has(row, id); };
  Race race{row, numbers, temperature};
  race.enter(first_at_least(row, row.highest), kept);
  // w exp(-score) without an exponential: 2^y is at most the float with bits (y + 127) 2^23, the
  // chord from power to power. In units of 2^-bound_bits; `beyond` is more than rounding takes away
  // wherever a token can still win.
  constexpr double log2_e = 1.4426950408889634, unit = 0x1p23, beyond = 0x1p-12;
  const auto bound_at = [&] {
    return set1(static_cast<float>((127 + bound_bits + beyond - race.score * log2_e) * unit));
  };
  F32 start = bound_at();
  const F32 slope = set1(static_cast<float>(log2_e * unit));
  const auto look = [&](int64_t first, F32 x) {
    const F32 power = fma((x - set1(row.highest)) * set1(row.inverse), slope, start);
    const F32 reach = as_float(to_words(max(power, zero())));
    const Words words = numbers.word(count_from(static_cast<uint32_t>(first)), 0);
    uint32_t possible = bits(less(to_float(words >> (32 - bound_bits)), reach));
    if (possible == 0) return;
    for (; possible != 0; possible &= possible - 1)
      race.enter(first + __builtin_ctz(possible), kept);
    start = bound_at();
  };
  int64_t i = 0;
  for (; row.vocab - i >= F32::lanes; i += F32::lanes) look(i, load(row.logits + i));
  if (i < row.vocab) look(i, load_end(row, i));
  return static_cast<int32_t>(race.winner);
}

// The winner of the first `count` items.
inline int32_t race_items(const Row& row, const Numbers& numbers, float temperature,
                          int64_t count) {
  Race race{row, numbers, temperature};
  const auto kept = [](int64_t) { return true; };
  double reach = INFINITY;
  for (int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<uint32_t>(row.items[i].id);
    const uint32_t bound = numbers.word(id, 0) >> (32 - bound_bits);
    if (bound > row.weights[i] * reach || !race.enter(id, kept)) continue;
    reach = ::exp(-race.score) * (1.0 + 0x1p-12) * (1 << bound_bits);
  }
  return static_cast<int32_t>(race.winner);
}

inline int32_t race(const Row& row, const Numbers& numbers, float temperature, const Kept& kept) {
  return kept.few != undecided ? race_items(row, numbers, temperature, kept.few)
                               : race_all(row, numbers, temperature, kept);
}

}  // namespace quire::QUIRE_ISA
