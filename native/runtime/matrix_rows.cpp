#include "runtime/matrix_rows.h"

namespace quire {
namespace {

// What makes bytes of codes: nothing or bit planes, where it is their number of bits; or these.
// Vectors follow them.
enum Codes : int32_t { e4m3 = 0, book = 1, tables = 7, last_codes = 8 };

enum Products : int32_t { halves, records, joined, whole_rows, num_products };

int32_t codes_of(const QuantizedWeights& weights) {
  if (weights.float_codes) return e4m3;
  if (weights.has_vectors()) return last_codes + static_cast<int32_t>(weights.vectors);
  if (weights.has_tables()) return tables;
  return weights.has_book ? book : weights.bits;
}

Products products_of(const QuantizedWeights& weights) {
  if (weights.sums_whole_rows()) return whole_rows;
  if (weights.group_size < QuantizedWeights::record_inputs) return halves;
  return weights.activation_inputs() > QuantizedWeights::record_inputs ? joined : records;
}

// Whether all codes are signed bytes once their zero is subtracted.
bool fits_signed_bytes(const QuantizedWeights& weights) {
  return weights.has_book || weights.bits < 8 || weights.zero == 128;
}

constexpr int32_t forms_of_codes = num_products * 2;
static_assert((last_codes + num_vector_forms) * forms_of_codes == num_matrix_forms);

constexpr MatrixRows defaults() {
  MatrixRows rows{{}, 4};
  for (int32_t form = 0; form < num_matrix_forms; ++form)
    rows.quantized[form] = form / forms_of_codes == e4m3 ? rows.bfloat16 : 16;
  return rows;
}

MatrixRows current = defaults();

}  // namespace

int32_t matrix_form(const QuantizedWeights& weights) {
  const bool tiles =
      weights.multiplies_floats() ? weights.multiplies_pairs() : fits_signed_bytes(weights);
  if (!tiles) return no_matrix_form;
  return codes_of(weights) * forms_of_codes + products_of(weights) * 2 + weights.has_corrections();
}

int64_t MatrixRows::of(const QuantizedWeights& weights) const {
  const int32_t form = matrix_form(weights);
  return form == no_matrix_form ? INT64_MAX : quantized[form];
}

const MatrixRows& matrix_rows() { return current; }

void set_matrix_rows(const MatrixRows& rows) { current = rows; }

}  // namespace quire
