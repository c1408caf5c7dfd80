// y = x W^T + bias for quantized weights, one row to thousands. An instruction set that extends
// another leaves products to it that are the same there (other_kernel).
#include "cpu/float_blocks.h"
#include "cpu/float_code_blocks.h"
#include "cpu/integer_blocks.h"
#include "cpu/linear_rows.h"
#include "cpu/matrix_blocks.h"
#include "cpu/rotation.h"
#include "cpu/rounded_rows.h"
#include "cpu/whole_row_blocks.h"
#include "include/kernels.h"
#include "runtime/matrix_rows.h"

namespace quire::QUIRE_ISA {
namespace {

// Rows multiplied together: their activations of one block stay in L2 (a KiB each).
constexpr int64_t max_rows_at_once = 256;

// How many panels make a chunk: a 64th of the weights, so that threads end together, but not so few
// bytes that the wait for the first of them counts. All panels when the work is small, because
// waking another thread costs some microseconds.
int64_t panels_of_chunk(const QuantizedWeights& weights, int64_t rows) {
  if (weights.bytes() * (1 + rows / 4) < (1 << 19)) return weights.num_panels();
  const int64_t bytes =
      larger<int64_t>(64 << 10, smaller<int64_t>(256 << 10, weights.bytes() / 64));
  return larger<int64_t>(rows > 32 ? 4 : 1, bytes / weights.panel_bytes());
}

// Goes through the blocks of some panels. Few rows read weights in the order of memory; many find
// each block of theirs in the cache for several panels.
class BlockWalk {
 public:
  BlockWalk(int64_t num_panels, int64_t num_blocks, bool few)
      : num_panels_(num_panels), num_blocks_(num_blocks), few_(few) {}

  int64_t panel = 0, block = 0;
  bool done() const { return panel == num_panels_ || block == num_blocks_; }
  void step() {
    if (few_ ? ++block < num_blocks_ : ++panel < num_panels_) return;
    few_ ? (block = 0, ++panel) : (panel = 0, ++block);
  }

 private:
  int64_t num_panels_, num_blocks_;
  bool few_;
};

// Rows of a call: as they are, and where the weights want them rounded, what they were rounded to.
struct InputRows {
  const float* x;
  int64_t count;
  const RoundedRows* rounded;
};

// Add the sums of each row's parts, which follow each other: [count][parts][32 outputs].
void add_parts(int64_t count, int64_t parts, float* sums) {
  for (int64_t row = 0; row < count; ++row)
    for (int64_t i = 0; i < panel_width; i += F32::lanes) {
      F32 sum = load(sums + row * parts * panel_width + i);
      for (int64_t part = 1; part < parts; ++part)
        sum = sum + load(sums + (row * parts + part) * panel_width + i);
      store(sums + row * panel_width + i, sum);
    }
}

template <class Blocks>
void multiply(const QuantizedWeights& weights, const InputRows& rows, float* out,
              int64_t out_stride) {
  const int64_t parts = Blocks::format(weights).parts, num_rows = rows.count * parts;
  const Activations<typename Blocks::Format> activations(
      {weights.in_features, weights.padded_inputs(), weights.input_order},
      rows.rounded ? rows.rounded->codes() : rows.x, num_rows, Blocks::format(weights));
  const int64_t panels = panels_of_chunk(weights, num_rows);
  const bool few = num_rows <= 32;
  const auto multiply_chunk = [&](int64_t chunk) {
    const int64_t begin = chunk * panels, end = smaller(begin + panels, weights.num_panels());
    const int64_t panel_sums = num_rows * panel_width, panel_bytes = weights.panel_bytes();
    auto* sums = static_cast<float*>(
        scratch(Slot::partial, static_cast<size_t>((end - begin) * panel_sums) * sizeof(float)));
    const char* const data = weights.data + begin * panel_bytes;
    // What a thread most likely takes after the last of them.
    const int64_t coming = few ? panels : panels * num_threads();
    const int64_t last = begin + coming < weights.num_panels() ? coming : end - begin - 1;
    Blocks blocks(weights, activations);
    if constexpr (Blocks::takes_group_factors)
      if (rows.rounded) blocks.take_factors(*rows.rounded);
    BlockWalk here(end - begin, activations.num_blocks(), few), next = here;
    for (next.step(); !here.done(); here = next, next.step()) {
      const bool more = !next.done();
      blocks.multiply({data + here.panel * panel_bytes, here.block,
                       data + (more ? next.panel : last) * panel_bytes, more ? next.block : 0},
                      sums + here.panel * panel_sums);
    }
    if (!Blocks::takes_row_scales && weights.row_scales != RowForm::none)
      for (int64_t i = 0; i < end - begin; ++i)
        apply_row_scales(weights.row_scales, data + i * panel_bytes, num_rows,
                         sums + i * panel_sums);
    if (rows.rounded) rows.rounded->finish(data, end - begin, sums);
    if (parts > 1) add_parts((end - begin) * rows.count, parts, sums);
    write_panels({sums, begin, end, rows.count, weights.out_features, weights.bias}, out,
                 out_stride);
    if (weights.outliers.starts)
      add_outliers(weights, rows.x, rows.count, begin * panel_width,
                   smaller(end * panel_width, weights.out_features), out, out_stride);
  };
  parallel_for(ceil_div(weights.num_panels(), panels), multiply_chunk,
               few ? Claim::run : Claim::one);
}

void multiply_rows(const QuantizedWeights& weights, const InputRows& rows, float* out,
                   int64_t out_stride) {
  if (weights.multiplies_pairs())
    return rows.count < matrix_rows().of(weights)
               ? multiply<FloatCodeBlocks<FewRowsFormat>>(weights, rows, out, out_stride)
               : multiply<FloatCodeBlocks<ManyRowsFormat>>(weights, rows, out, out_stride);
#if defined(QUIRE_MATRIX_TILES)
  using Blocks = MatrixBlocks;
  using WholeBlocks = WholeRowMatrixBlocks;
#else
  using Blocks = IntegerBlocks;
  using WholeBlocks = WholeRowBlocks;
#endif
#if !defined(QUIRE_EXTENDS)
  if (weights.multiplies_floats()) return multiply<FloatBlocks>(weights, rows, out, out_stride);
#endif
  if (weights.sums_whole_rows()) return multiply<WholeBlocks>(weights, rows, out, out_stride);
  multiply<Blocks>(weights, rows, out, out_stride);
}

// The same of rows that are rotated before and after; what rounds inputs is not for those.
void multiply_rotated(const QuantizedWeights& weights, const float* x, int64_t num_rows, float* out,
                      int64_t out_stride) {
  QuantizedWeights inner = weights;
  inner.bias = nullptr;  // added after the rotation
  const int64_t given = weights.given_inputs(), taken = weights.in_features;
  auto* rows = static_cast<float*>(
      scratch(Slot::rotated, static_cast<size_t>(num_rows * taken) * sizeof(float)));
  rotate_rows(num_rows, given,
              [&](int64_t row) { rotate_inputs(weights, x + row * given, rows + row * taken); });
  multiply_rows(inner, {rows, num_rows, nullptr}, out, out_stride);
  rotate_rows(num_rows, weights.out_features,
              [&](int64_t row) { rotate_outputs(weights, out + row * out_stride); });
}

using Kernel = decltype(&linear_quantized);

// The kernel that has these products, where they are not compiled here; else null. The base has
// those of floats; what matrix tiles are not for is where the same vectors are.
Kernel other_kernel(const QuantizedWeights& weights, [[maybe_unused]] int64_t rows) {
  if (weights.multiplies_pairs()) return nullptr;
#if defined(QUIRE_EXTENDS)
  if (weights.multiplies_floats()) return QUIRE_BASE_ISA::linear_quantized;
#endif
#if defined(QUIRE_MATRIX_TILES)
  if (rows < matrix_rows().of(weights)) return QUIRE_VECTOR_ISA::linear_quantized;
#endif
  return nullptr;
}

}  // namespace

void linear_quantized(const QuantizedWeights& weights, const float* x, int64_t num_rows, float* out,
                      int64_t out_stride) {
  const int64_t parts = weights.activations.parts();
  const int64_t passes = ceil_div(num_rows * parts, max_rows_at_once);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t row = pass * num_rows / passes;
    const int64_t rows = (pass + 1) * num_rows / passes - row;
    const float* inputs = x + row * weights.given_inputs();
    float* const results = out + row * out_stride;
    if (const Kernel other = other_kernel(weights, rows * parts)) {
      other(weights, inputs, rows, results, out_stride);
    } else if (weights.is_rotated()) {
      multiply_rotated(weights, inputs, rows, results, out_stride);
    } else if (weights.activations.rounds_rows()) {
      const RoundedRows rounded(weights, inputs, rows);
      multiply_rows(weights, {inputs, rows, &rounded}, results, out_stride);
    } else {
      multiply_rows(weights, {inputs, rows, nullptr}, results, out_stride);
    }
  }
}

}  // namespace quire::QUIRE_ISA
