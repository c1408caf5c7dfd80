#include "runtime/shared_stream.h"

#include <algorithm>
#include <cstring>

namespace quire {

SharedStream::SharedStream(SharedSegment& segment, size_t offset, size_t capacity, int writer,
                           std::vector<int> readers, int rank)
    : segment_(segment),
      capacity_(static_cast<uint32_t>(capacity)),
      writer_(writer),
      readers_(std::move(readers)) {
  char* place = segment.at(offset, bytes(readers_.size(), capacity));
  if (!place || capacity < 64 || capacity > (size_t{1} << 30) || (capacity & (capacity - 1)))
    throw std::invalid_argument(
        "[shared stream] it must lie in the segment and hold a power of two from 64 to 2**30.");
  head_ = reinterpret_cast<Place*>(place);
  tails_ = head_ + 1;
  data_ = place + bytes(readers_.size(), 0);
  for (size_t i = 0; i < readers_.size(); ++i)
    if (readers_[i] == rank) tail_ = tails_ + i;
  if (!tail_ && rank != writer)
    throw std::invalid_argument("[shared stream] a rank must write or read.");
  at_ = published_ = (tail_ ? tail_ : head_)->bytes.value.load();
}

void SharedStream::put(const char* from, size_t bytes, Rest& rest) {
  while (bytes) {
    uint32_t room = capacity_;
    for (size_t i = 0; i < readers_.size(); ++i) {
      uint32_t used = at_ - tails_[i].bytes.value.load(std::memory_order_acquire);
      if (used == capacity_) {
        segment_.publish(head_->bytes, published_ = at_);
        used = at_ - segment_.wait(tails_[i].bytes, at_ - capacity_ + 1, readers_[i], rest);
      }
      room = std::min(room, capacity_ - used);
    }
    const uint32_t place = at_ & (capacity_ - 1);
    const size_t count = std::min({bytes, size_t{room}, size_t{capacity_ - place}});
    std::memcpy(data_ + place, from, count);
    from += count;
    bytes -= count;
    at_ += static_cast<uint32_t>(count);
    // Readers copy the first part of what is long while the rest is written.
    if (at_ - published_ >= capacity_ / 4) segment_.publish(head_->bytes, published_ = at_);
  }
}

void SharedStream::write(const std::vector<Piece>& message, Rest& rest) {
  segment_.give_sign();
  uint64_t total = 0;
  for (const Piece& piece : message) total += piece.second;
  put(reinterpret_cast<const char*>(&total), sizeof(total), rest);
  for (const Piece& piece : message) put(piece.first, piece.second, rest);
  segment_.publish(head_->bytes, published_ = at_);
}

void SharedStream::take(char* to, size_t bytes, Rest& rest, bool patient) {
  while (bytes) {
    const uint32_t head = segment_.wait(head_->bytes, at_ + 1, writer_, rest, patient);
    const uint32_t place = at_ & (capacity_ - 1);
    const size_t count = std::min({bytes, size_t{head - at_}, size_t{capacity_ - place}});
    std::memcpy(to, data_ + place, count);
    to += count;
    bytes -= count;
    at_ += static_cast<uint32_t>(count);
    segment_.publish(tail_->bytes, at_);
  }
}

uint64_t SharedStream::next(Rest& rest, bool patient) {
  segment_.give_sign();
  uint64_t total = 0;
  take(reinterpret_cast<char*>(&total), sizeof(total), rest, patient);
  return total;
}

void SharedStream::read(char* to, size_t bytes, Rest& rest) { take(to, bytes, rest, false); }

}  // namespace quire
