// AMX's instructions decoded from their bytes and done by the manual. Where there is no AMX each of
// them traps, and the products of the table `amx` must be those of amx_emulated, bit for bit. Where
// AMX is real nothing traps: the table's products are the processor's, and sequences of
// instructions that are done here must leave what the processor leaves.
//
// Source of encodings and operations: Intel's Software Developer's Manual, volume 2, LDTILECFG,
// TILELOADD, TILESTORED, TILEZERO, TILERELEASE, TDPBSSD, TDPBF16PS.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ucontext.h>
#include <xmmintrin.h>

#include <vector>

#include "include/attention.h"
#include "include/linear.h"
#include "include/quantized.h"
#include "runtime/capabilities.h"
#include "runtime/matrix_rows.h"
#include "runtime/thread_pool.h"

namespace quire {
#define QUIRE_TABLE(isa)                                                                  \
  namespace isa {                                                                         \
  void linear(const LinearWeights&, const float*, int64_t, float*, int64_t);              \
  void linear_quantized(const QuantizedWeights&, const float*, int64_t, float*, int64_t); \
  void paged_attention(const AttentionLayer&, const KVBlocks&, const AttentionBatch&,     \
                       const float*, float*);                                             \
  }
QUIRE_TABLE(amx)
QUIRE_TABLE(amx_emulated)
}  // namespace quire

namespace {

using quire::LinearWeights;
using quire::QuantizedWeights;

struct Tile {
  int rows, row_bytes;
  uint8_t bytes[16][64];
};
thread_local Tile tiles[8];
thread_local bool configured;
volatile long trapped;

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "amx_instructions: %s\n", what);
  abort();
}

// The registers of a ModRM or SIB byte in the order that x86 numbers them.
constexpr int registers[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                             REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                             REG_R12, REG_R13, REG_R14, REG_R15};

// An instruction of AMX: VEX of three bytes, opcode, ModRM, and for memory SIB and displacement.
struct Instruction {
  int prefix, opcode, mod, reg, rm, third;  // prefix 0 none, 1 66, 2 F3, 3 F2
  int64_t base = 0, stride = 0;
  int length = 5;
};

Instruction decode(const uint8_t* code, const greg_t* values) {
  if (code[0] != 0xc4 || (code[1] & 31) != 2 || (code[2] & 0x84) != 0)
    fail("no VEX.128.0F38.W0 instruction");
  Instruction found{code[2] & 3,      code[3],     code[4] >> 6,
                    code[4] >> 3 & 7, code[4] & 7, ~(code[2] >> 3) & 15};
  if (found.mod == 3) return found;
  const int high_index = code[1] & 0x40 ? 0 : 8, high_base = code[1] & 0x20 ? 0 : 8;
  int base = found.rm + high_base;
  if (found.rm == 4) {
    const int sib = code[found.length++], index = (sib >> 3 & 7) + high_index;
    base = (sib & 7) + high_base;
    if (index != 4) found.stride = values[registers[index]] << (sib >> 6);
  }
  if (found.mod == 0 && base % 8 == 5) fail("an address without a base");
  found.base = values[registers[base]];
  if (found.mod == 1) found.base += static_cast<int8_t>(code[found.length]);
  if (found.mod == 2) {
    int32_t displacement;
    memcpy(&displacement, code + found.length, 4);
    found.base += displacement;
  }
  found.length += found.mod == 1 ? 1 : found.mod == 2 ? 4 : 0;
  return found;
}

void configure(const uint8_t* config) {
  if (config[0] != 1 || config[1] != 0) fail("palette must be 1, start row 0");
  for (int i = 2; i < 16; ++i)
    if (config[i]) fail("reserved bytes must be 0");
  for (int t = 0; t < 16; ++t) {
    const int row_bytes = config[16 + 2 * t] | config[17 + 2 * t] << 8, rows = config[48 + t];
    if (t >= 8 && (row_bytes || rows)) fail("there are eight tiles");
    if (row_bytes > 64 || rows > 16 || !row_bytes != !rows) fail("a tile's shape");
    if (t < 8) tiles[t] = {rows, row_bytes, {}};
  }
  configured = true;
}

void multiply_bytes(Tile& sum, const Tile& a, const Tile& b) {
  for (int m = 0; m < sum.rows; ++m)
    for (int k = 0; k < a.row_bytes / 4; ++k)
      for (int n = 0; n < sum.row_bytes / 4; ++n) {
        int32_t x;
        memcpy(&x, sum.bytes[m] + 4 * n, 4);
        for (int i = 0; i < 4; ++i)
          x += static_cast<int8_t>(a.bytes[m][4 * k + i]) *
               static_cast<int8_t>(b.bytes[k][4 * n + i]);
        memcpy(sum.bytes[m] + 4 * n, &x, 4);
      }
}

float brain_at(const uint8_t* p) {
  const uint32_t bits = static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 24;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

void multiply_bfloat16(Tile& sum, const Tile& a, const Tile& b) {
  _mm_setcsr(0x9fc0);  // to nearest even, denormals are zero and flushed; the handler's own copy
  for (int m = 0; m < sum.rows; ++m)
    for (int n = 0; n < sum.row_bytes / 4; ++n) {
      volatile float even = 0, odd = 0;  // volatile: not moved over the change of mode
      for (int k = 0; k < a.row_bytes / 4; ++k) {
        even = fmaf(brain_at(a.bytes[m] + 4 * k), brain_at(b.bytes[k] + 4 * n), even);
        odd = fmaf(brain_at(a.bytes[m] + 4 * k + 2), brain_at(b.bytes[k] + 4 * n + 2), odd);
      }
      volatile float both = even + odd, x;
      memcpy(const_cast<float*>(&x), sum.bytes[m] + 4 * n, 4);
      x = x + both;
      memcpy(sum.bytes[m] + 4 * n, const_cast<float*>(&x), 4);
    }
}

Tile& tile(int number) {
  if (!configured || number > 7 || !tiles[number].rows) fail("a tile without a shape");
  return tiles[number];
}

void multiply(const Instruction& found) {
  Tile &sum = tile(found.reg), &a = tile(found.rm), &b = tile(found.third);
  if (&sum == &a || &sum == &b || &a == &b) fail("the three tiles must differ");
  if (sum.rows != a.rows || sum.row_bytes != b.row_bytes || a.row_bytes != 4 * b.rows)
    fail("shapes that do not multiply");
  if (found.opcode == 0x5e && found.prefix == 3) return multiply_bytes(sum, a, b);
  if (found.opcode == 0x5c && found.prefix == 2) return multiply_bfloat16(sum, a, b);
  fail("an unknown product");
}

void execute(const Instruction& found) {
  auto* memory = reinterpret_cast<uint8_t*>(found.base);
  if (found.opcode == 0x49 && found.prefix == 0 && found.mod != 3) return configure(memory);
  if (found.opcode == 0x49 && found.prefix == 0) {
    configured = false;
  } else if (found.opcode == 0x49 && found.prefix == 3 && found.mod == 3) {
    memset(tile(found.reg).bytes, 0, sizeof(Tile::bytes));
  } else if (found.opcode == 0x4b && found.mod != 3) {
    Tile& t = tile(found.reg);
    if (found.prefix == 3) memset(t.bytes, 0, sizeof(t.bytes));
    for (int row = 0; row < t.rows; ++row) {
      uint8_t* line = memory + row * found.stride;
      const auto bytes = static_cast<size_t>(t.row_bytes);
      found.prefix == 3 ? memcpy(t.bytes[row], line, bytes) : memcpy(line, t.bytes[row], bytes);
    }
  } else {
    multiply(found);
  }
}

void on_trap(int, siginfo_t*, void* context) {
  greg_t* values = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction found = decode(reinterpret_cast<const uint8_t*>(values[REG_RIP]), values);
  trapped = trapped + 1;
  values[REG_RIP] += found.length;
  execute(found);
}

// Asks the system for tiles where there are any.
bool tiles_are_real() { return quire::machine_has("amx"); }

uint32_t state = 1;
uint32_t random_bits() {
  state = state * 1664525 + 1013904223;
  return state >> 8;
}
float random_float() { return static_cast<float>(random_bits()) / (1 << 23) - 1.0f; }

template <class Weights, class Linear>
void compare(const char* name, const Weights& weights, Linear amx, Linear emulated) {
  constexpr int64_t most = 70;
  std::vector<float> x(static_cast<size_t>(most * weights.in_features));
  for (float& value : x) value = random_float() * (random_bits() % 64 ? 1.0f : 1e-38f);
  const auto size = static_cast<size_t>(most * weights.out_features);
  std::vector<float> got(size), want(size);
  const long before = trapped;
  for (const int64_t rows : {1, 5, 16, 17, 32, 33, 70}) {
    amx(weights, x.data(), rows, got.data(), weights.out_features);
    emulated(weights, x.data(), rows, want.data(), weights.out_features);
    if (memcmp(got.data(), want.data(), size * sizeof(float))) fail(name);
    float most_of_all = 0;
    for (int64_t i = 0; i < rows * weights.out_features; ++i) {
      if (!isfinite(want[static_cast<size_t>(i)])) fail("a product that is no number");
      most_of_all = fmaxf(most_of_all, fabsf(want[static_cast<size_t>(i)]));
    }
    if (most_of_all < 0.1f) fail("products of nothing");
  }
  printf("%s: equal, %ld instructions emulated\n", name, trapped - before);
}

// Every instruction that kernels have: rdi configuration, rsi left, rdx right, rcx sums, r8 stride.
extern "C" const uint8_t byte_sequence[], brain_sequence[];
__asm__(R"(
.macro quire_sequence name, product
\name:
  ldtilecfg (%rdi)
  tileloadd (%rcx,%r8,1), %tmm0
  tileloadd (%rsi,%r8,1), %tmm5
  tileloadd 64(%rdx,%r8,1), %tmm7
  tilezero %tmm3
  \product %tmm7, %tmm5, %tmm0
  \product %tmm7, %tmm5, %tmm3
  \product %tmm7, %tmm5, %tmm3
  tilestored %tmm0, (%rcx,%r8,1)
  tilestored %tmm3, 128(%rcx,%r8,1)
  tilerelease
  ret
.endm
.text
quire_sequence byte_sequence, tdpbssd
quire_sequence brain_sequence, tdpbf16ps
)");

struct Operands {
  static constexpr int64_t stride = 192;
  alignas(64) uint8_t config[64], left[16 * stride], right[16 * stride], sums[16 * stride];
};

// Do a sequence's instructions one after another, without the processor's.
void interpret(const uint8_t* code, Operands& with) {
  const unsigned mode = _mm_getcsr();
  greg_t values[NGREG] = {};
  const auto address = [](uint8_t* p) { return reinterpret_cast<greg_t>(p); };
  values[REG_RDI] = address(with.config), values[REG_RSI] = address(with.left);
  values[REG_RDX] = address(with.right), values[REG_RCX] = address(with.sums);
  values[REG_R8] = Operands::stride;
  constexpr uint8_t ret = 0xc3;
  while (*code != ret) {
    const Instruction found = decode(code, values);
    execute(found);
    code += found.length;
  }
  _mm_setcsr(mode);
}

// Any bytes, or pairs of bfloat16 whose exponents are from `first` on.
void fill_operands(Operands& with, bool bytes, uint32_t first, uint32_t exponents) {
  for (uint8_t* data : {with.left, with.right, with.sums})
    for (int64_t i = 0; i < 16 * Operands::stride; i += 2) {
      const uint32_t number = random_bits(), exponent = first + random_bits() % exponents;
      const uint32_t brain = (number & 0x807f) | exponent << 7;
      const auto both = static_cast<uint16_t>(bytes ? number : brain);
      memcpy(data + i, &both, 2);
    }
}

// A product of `rows` rows of `inner` bytes in both ways: by the processor, or what its traps call,
// and here.
void compare_sequence(const uint8_t* code, const Operands& with, int rows, int inner) {
  Operands given = with;
  memset(given.config, 0, sizeof(given.config));
  given.config[0] = 1;
  for (int t = 0; t < 8; ++t) {
    given.config[16 + 2 * t] = static_cast<uint8_t>(t == 4 || t == 5 ? inner : 64);
    given.config[48 + t] = static_cast<uint8_t>(t < 6 ? rows : inner / 4);
  }
  Operands got = given, want = given;
  using Sequence = void (*)(const uint8_t*, const uint8_t*, const uint8_t*, uint8_t*, int64_t);
  reinterpret_cast<Sequence>(code)(got.config, got.left, got.right, got.sums, Operands::stride);
  interpret(code, want);
  if (memcmp(got.sums, want.sums, sizeof(got.sums))) fail("a sequence");
  if (!memcmp(got.sums, given.sums, sizeof(got.sums))) fail("a sequence without products");
}

void compare_sequences() {
  Operands with;
  for (const int rows : {1, 5, 16})
    for (const int inner : {4, 16, 32, 64})
      for (int time = 0; time < 50; ++time) {
        fill_operands(with, true, 0, 1);
        compare_sequence(byte_sequence, with, rows, inner);
        // Usual numbers; denormal products; denormals and all that is below 2.
        fill_operands(with, false,
                      time % 3 == 0   ? 120
                      : time % 3 == 1 ? 60
                                      : 0,
                      time % 3 == 0   ? 16
                      : time % 3 == 1 ? 8
                                      : 128);
        compare_sequence(brain_sequence, with, rows, inner);
      }
  puts("sequences: equal");
}

// bfloat16 of floats in [-1, 1).
void fill_brains(std::vector<uint16_t>& data) {
  for (uint16_t& value : data) {
    const float x = random_float();
    memcpy(&value, reinterpret_cast<const char*>(&x) + 2, 2);
  }
}

// The last `queries` of `context` tokens of one request, 5 query heads on a KV head.
void compare_attention(int64_t head_dim, int32_t queries, int32_t context) {
  constexpr int64_t group = 5, kv_heads = 2, heads = group * kv_heads, size = 16;
  const int64_t num_blocks = (context + size - 1) / size;
  std::vector<uint16_t> data(static_cast<size_t>(num_blocks * 2 * kv_heads * head_dim * size));
  fill_brains(data);
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(table.size() - 1 - i);
  std::vector<float> qkv(static_cast<size_t>(queries * (heads + 2 * kv_heads) * head_dim));
  for (float& value : qkv) value = random_float();
  quire::AttentionLayer layer{};
  layer.num_heads = heads, layer.num_kv_heads = kv_heads, layer.head_dim = head_dim;
  layer.value_dim = head_dim;
  layer.scale = 0.3f, layer.window = 300, layer.chunk = int64_t{1} << 40;
  const quire::KVBlocks blocks{data.data(), nullptr, quire::KVType::bfloat16, size, 2 * kv_heads,
                               0,           false};
  const int32_t starts[] = {0, queries};
  quire::AttentionBatch batch{};
  batch.num_tokens = queries, batch.num_requests = 1, batch.max_blocks = num_blocks;
  batch.block_tables = table.data(), batch.query_start_loc = starts, batch.seq_lens = &context;
  std::vector<float> got(static_cast<size_t>(queries * heads * head_dim)), want(got.size());
  const long before = trapped;
  quire::amx::paged_attention(layer, blocks, batch, qkv.data(), got.data());
  quire::amx_emulated::paged_attention(layer, blocks, batch, qkv.data(), want.data());
  if (memcmp(got.data(), want.data(), got.size() * sizeof(float))) fail("attention");
  if (queries > 1 && trapped == before && !tiles_are_real()) fail("attention without tiles");
  if (!isfinite(want[0]) || want[0] == 0.0f) fail("attention to nothing");
  printf("attention: equal, %ld instructions emulated\n", trapped - before);
}

void compare_brains(int64_t inputs, int64_t outputs) {
  LinearWeights weights{inputs, outputs, quire::DType::bfloat16, nullptr, nullptr};
  std::vector<uint16_t> data(static_cast<size_t>(weights.bytes() / 2));
  fill_brains(data);
  weights.data = reinterpret_cast<char*>(data.data());
  compare("bfloat16", weights, quire::amx::linear, quire::amx_emulated::linear);
}

void compare_bytes(int32_t bits, int64_t group, int64_t inputs, int64_t outputs) {
  QuantizedWeights weights{};
  weights.in_features = inputs, weights.out_features = outputs, weights.group_size = group;
  weights.bits = bits, weights.zero = 1 << (bits - 1), weights.has_offsets = bits == 4;
  std::vector<char> data(static_cast<size_t>(weights.bytes()));
  for (char& value : data) value = static_cast<char>(random_bits());
  weights.data = data.data();
  for (int64_t panel = 0; panel < weights.num_panels(); ++panel)
    for (int64_t unit = 0; unit < weights.num_units(); ++unit)
      for (int64_t i = 0; i < weights.codes_begin(); i += 4) {
        const float x = random_float();
        memcpy(weights.data + panel * weights.panel_bytes() + unit * weights.unit_bytes() + i, &x,
               4);
      }
  compare("bytes", weights, quire::amx::linear_quantized, quire::amx_emulated::linear_quantized);
}

}  // namespace

int main() {
  struct sigaction action{};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
  puts(tiles_are_real() ? "tiles of the processor" : "tiles emulated instruction by instruction");
  compare_sequences();
  quire::set_num_threads(1);
  quire::MatrixRows rows{{}, 1};
  for (int64_t& form : rows.quantized) form = 1;
  quire::set_matrix_rows(rows);
  compare_brains(600, 70);
  compare_brains(33, 31);
  compare_bytes(8, 32, 600, 70);
  compare_bytes(4, 16, 600, 70);
  compare_bytes(4, 128, 600, 70);
  compare_attention(64, 40, 333);
  compare_attention(40, 3, 17);
  compare_attention(64, 1, 400);
  puts("amx_instructions: all good");
}
