// Python: segments in shared memory, the collectives and streams of ranks that have one.
#include "runtime/shared_group.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <deque>
#include <limits>
#include <stdexcept>
#include <vector>

#include "bindings/binding.h"
#include "runtime/shared_stream.h"

namespace quire {
namespace {

using Array = SharedGroup::Array;

// Calls of microseconds keep the interpreter's lock until they sleep; copies of much give it up.
class Call final : public Rest {
 public:
  explicit Call(size_t bytes) {
    if (Recording::open()) throw std::logic_error("[group] a recording cannot hold collectives.");
    if (bytes > (size_t{1} << 18)) whole_.emplace();
  }
  void begin() override {
    if (!whole_) nap_.emplace();
  }
  void end() override { nap_.reset(); }

 private:
  std::optional<nb::gil_scoped_release> whole_, nap_;
};

WaitLimits wait_limits(double spin_seconds, double silence_seconds) {
  const auto nanoseconds = [](double seconds) {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e9));
  };
  return {nanoseconds(spin_seconds), nanoseconds(silence_seconds)};
}

Array array_of(const Buffer& buffer) { return {static_cast<char*>(buffer.data()), buffer.bytes()}; }

void check_rank(bool right) {
  if (!right)
    throw std::invalid_argument("[group] ranks must be of the group, arrays one for each.");
}

// A group for Python, which keeps its segment alive.
struct Group {
  nb::object segment;
  SharedGroup group;
  size_t size;
  int rank;

  Group(nb::object segment_object, size_t offset, size_t area_bytes, std::vector<int> members,
        int rank)
      : segment(segment_object),
        group(nb::cast<SharedSegment&>(segment_object), offset, area_bytes, members, rank),
        size(members.size()),
        rank(rank) {}

  void all_reduce(nb::handle x) {
    const Buffer buffer(x, 0, true, sizeof(float));
    Call call(buffer.bytes());
    group.all_reduce(static_cast<float*>(buffer.data()),
                     static_cast<int64_t>(buffer.bytes() / sizeof(float)), call);
  }

  // Widths in bytes. `out` is None where another rank is the root; a root of -1 is all ranks.
  void gather(nb::handle part, const std::vector<size_t>& widths, size_t rows, nb::handle out,
              int root) {
    check_rank(widths.size() == size && root >= -1 && (root < 0 || size_t(root) < size));
    size_t row_bytes = 0;
    for (const size_t width : widths) row_bytes += width;
    if (row_bytes && rows > std::numeric_limits<size_t>::max() / row_bytes)
      throw std::invalid_argument("[gather] the array is too large.");
    const Buffer given(part, rows * widths[static_cast<size_t>(rank)], false);
    std::optional<Buffer> got;
    if (root < 0 || root == rank) got.emplace(out, rows * row_bytes, true);
    Call call(rows * row_bytes);
    group.gather(static_cast<const char*>(given.data()), widths, rows,
                 got ? static_cast<char*>(got->data()) : nullptr, root, call);
  }

  void all_to_all(const std::vector<nb::object>& parts, const std::vector<nb::object>& out) {
    check_rank(parts.size() == size && out.size() == size);
    std::deque<Buffer> held;
    std::vector<Array> given, got;
    size_t bytes = 0;
    for (const nb::object& part : parts)
      given.push_back(array_of(held.emplace_back(part, 0, false)));
    for (const nb::object& part : out) got.push_back(array_of(held.emplace_back(part, 0, true)));
    for (const Array& part : given) bytes += part.bytes;
    for (const Array& part : got) bytes += part.bytes;
    Call call(bytes);
    group.all_to_all(given, got, call);
  }

  bool any(bool flag) {
    Call call(0);
    return group.any(flag, call);
  }
};

struct Stream {
  nb::object segment;
  SharedStream stream;

  Stream(nb::object segment_object, size_t offset, size_t capacity, int writer,
         std::vector<int> readers, int rank)
      : segment(segment_object),
        stream(nb::cast<SharedSegment&>(segment_object), offset, capacity, writer, readers, rank) {}

  void write(const std::vector<nb::object>& buffers) {
    std::deque<Buffer> held;
    std::vector<Piece> message;
    size_t bytes = 0;
    for (const nb::object& buffer : buffers) {
      const Buffer& piece = held.emplace_back(buffer, 0, false);
      message.emplace_back(static_cast<const char*>(piece.data()), piece.bytes());
      bytes += piece.bytes();
    }
    Call call(bytes);
    stream.write(message, call);
  }

  // The next message, which may take as long as it likes to come.
  nb::bytearray read() {
    Call call(0);
    const uint64_t bytes = stream.next(call, true);
    nb::bytearray message = nb::steal<nb::bytearray>(
        PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!message.is_valid()) throw nb::python_error();
    Call copy(bytes);
    stream.read(static_cast<char*>(message.data()), bytes, copy);
    return message;
  }

  // The next message, which has the buffer's size.
  void read_into(nb::handle x) {
    const Buffer buffer(x, 0, true);
    Call call(buffer.bytes());
    const uint64_t bytes = stream.next(call, false);
    if (bytes != buffer.bytes())
      throw CallsDiffer("[recv] the array must have the bytes that were sent, " +
                        std::to_string(bytes) + "; got " + std::to_string(buffer.bytes()) + ".");
    stream.read(static_cast<char*>(buffer.data()), bytes, call);
  }
};

}  // namespace

void bind_shared_group(nb::module_& m) {
  m.def(
      "raise_lost_ranks_as",
      [](nb::handle error) {
        static PyObject* type = nullptr;  // as long as the process
        if (type) return;
        type = error.inc_ref().ptr();
        nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
          try {
            std::rethrow_exception(pointer);
          } catch (const RankLost& lost) {
            PyErr_Format(type, "[group] rank %d is lost: %s.", lost.rank, lost.what());
          }
        });
      },
      "The class of the error that a lost rank is.");
  m.attr("shared_segment_header_bytes") = SharedSegment::header_bytes;
  m.attr("max_ranks") = SharedSegment::max_ranks;
  nb::class_<SharedSegment>(m, "SharedSegment")
      .def("__init__",
           [](SharedSegment* self, int descriptor, int rank, double spin, double silence) {
             new (self) SharedSegment(descriptor, rank, wait_limits(spin, silence));
           })
      .def("fail", &SharedSegment::fail);
  nb::class_<Group>(m, "SharedGroup")
      .def(nb::init<nb::object, size_t, size_t, std::vector<int>, int>())
      .def_static("num_bytes", &SharedGroup::bytes)
      .def("all_reduce", &Group::all_reduce)
      .def("gather", &Group::gather, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def("all_to_all", &Group::all_to_all)
      .def("any", &Group::any);
  nb::class_<Stream>(m, "SharedStream")
      .def(nb::init<nb::object, size_t, size_t, int, std::vector<int>, int>())
      .def_static("num_bytes", &SharedStream::bytes)
      .def("write", &Stream::write)
      .def("read", &Stream::read)
      .def("read_into", &Stream::read_into);
}

}  // namespace quire
