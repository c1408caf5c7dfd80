// Python: reading what GGUF headers have hundreds of thousands of, and looking vectors up for those
// who write such files.
#include <cstring>
#include <stdexcept>

#include "bindings/binding.h"

namespace quire {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// Read up to `count` strings, each a little-endian uint64 of bytes and as many of UTF-8, from
// data[at:end]. Returns them and where they end: fewer where the next one would go beyond `end`.
// Raises UnicodeDecodeError.
nb::tuple gguf_strings(nb::handle object, uint64_t at, uint64_t end, uint64_t count) {
  const Buffer data(object, end, false);
  const char* bytes = static_cast<const char*>(data.data());
  nb::list found;
  while (nb::len(found) < count && at <= end && end - at >= sizeof(uint64_t)) {
    uint64_t length;
    std::memcpy(&length, bytes + at, sizeof(length));
    const uint64_t begin = at + sizeof(length);
    if (length > end - begin) break;
    PyObject* text = PyUnicode_DecodeUTF8(bytes + begin, static_cast<Py_ssize_t>(length), nullptr);
    if (!text) throw nb::python_error();
    found.append(nb::steal(text));
    at = begin + length;
  }
  return nb::make_tuple(found, at);
}

// The arguments of both searches.
class SearchArguments {
 public:
  SearchArguments(nb::handle table, int64_t width, int64_t count, nb::handle x, nb::handle weights,
                  nb::handle flipped, int64_t num)
      : table_(table, width * count),
        x_(x, num * width),
        weights_(weights, num * width),
        flipped_(flipped, num),
        search_{table_, width, count, x_, weights_, flipped_, num} {
    if ((width != 4 && width != 8) || num < 0 || count < VectorSearch::chunk ||
        count % VectorSearch::chunk)
      throw std::invalid_argument(
          "[vector_search] width must be 4 or 8, and count a multiple of 256.");
  }
  const VectorSearch& get() const { return search_; }
  int64_t work() const { return search_.num * search_.count * search_.width; }

 private:
  Input<float> table_, x_, weights_;
  Input<uint8_t> flipped_;
  VectorSearch search_;
};

void vector_costs(nb::handle table, int64_t width, int64_t count, nb::handle x, nb::handle weights,
                  nb::handle flipped, int64_t num, nb::handle scales, int64_t num_scales,
                  nb::handle costs) {
  const SearchArguments arguments(table, width, count, x, weights, flipped, num);
  const Input<float> from(scales, num * num_scales);
  const Output<float> to(costs, num * num_scales);
  const GilRelease release(arguments.work());
  kernels().vector_costs(arguments.get(), from, num_scales, to);
}

void nearest_vectors(nb::handle table, int64_t width, int64_t count, nb::handle x,
                     nb::handle weights, nb::handle flipped, int64_t num, nb::handle scales,
                     nb::handle indices, nb::handle sums) {
  const SearchArguments arguments(table, width, count, x, weights, flipped, num);
  const Input<float> from(scales, num);
  const Output<int32_t> to(indices, num);
  const Output<float> sums_to(sums, 2 * num);
  const GilRelease release(arguments.work());
  kernels().nearest_vectors(arguments.get(), from, to, sums_to);
}

}  // namespace

void bind_gguf(nb::module_& m) {
  m.def("gguf_strings", gguf_strings);
  m.def("vector_costs", vector_costs);
  m.def("nearest_vectors", nearest_vectors);
}

}  // namespace quire
