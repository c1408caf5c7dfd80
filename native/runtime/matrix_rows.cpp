#include "runtime/matrix_rows.h"

namespace quire {
namespace {

MatrixRows current{16, 4};

}  // namespace

const MatrixRows& matrix_rows() { return current; }

void set_matrix_rows(const MatrixRows& rows) { current = rows; }

}  // namespace quire
