#include "runtime/shared_group.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace quire {
namespace {

const char* const call_names[] = {"all_reduce", "gather", "all_to_all", "any"};

size_t rounds_of(size_t bytes, size_t piece) {
  return std::max<size_t>(1, (bytes + piece - 1) / piece);
}

// The part of `bytes` that starts at `begin` and has `piece` at most.
size_t piece_of(size_t bytes, size_t begin, size_t piece) {
  return begin < bytes ? std::min(piece, bytes - begin) : 0;
}

void copy(char* to, const char* from, size_t bytes) {
  if (bytes) std::memcpy(to, from, bytes);
}

// Copy bytes `begin` and following of a matrix without gaps into rows that are `stride` apart.
void lay_rows(const char* from, size_t begin, size_t bytes, size_t width, char* to, size_t stride) {
  while (bytes) {
    const size_t row = begin / width, column = begin % width;
    const size_t count = std::min(bytes, width - column);
    std::memcpy(to + row * stride + column, from, count);
    from += count;
    begin += count;
    bytes -= count;
  }
}

}  // namespace

SharedGroup::SharedGroup(SharedSegment& segment, size_t offset, size_t area_bytes,
                         std::vector<int> members, int rank)
    : segment_(segment),
      area_bytes_(area_bytes),
      stride_(bytes(1, area_bytes)),
      base_(segment.at(offset, bytes(members.size(), area_bytes))),
      members_(std::move(members)),
      rank_(rank) {
  const auto outside = [](int member) { return member < 0 || member >= SharedSegment::max_ranks; };
  if (!base_ || area_bytes % 64 || area_bytes < 64 * (2 * size()) || rank < 0 || me() >= size() ||
      std::any_of(members_.begin(), members_.end(), outside))
    throw std::invalid_argument(
        "[shared group] it must lie in the segment, with 128 bytes of an area for each member.");
  for (size_t i = 0; i < size(); ++i) seen_.push_back(place(i).rounds.value.load());
  round_ = seen_[me()];
}

void SharedGroup::reach(size_t rank, uint32_t round, Rest& rest) {
  if (has_reached(seen_[rank], round)) return;
  seen_[rank] = segment_.wait(place(rank).rounds, round, members_[rank], rest);
}

void SharedGroup::begin(Call call, uint32_t number, uint64_t bytes, Rest& rest) {
  segment_.give_sign();
  ++round_;
  for (size_t i = 0; i < size(); ++i)
    if (i != me()) reach(i, round_ - 1, rest);
  place(me()).notes[round_ & 1] = {call, number, bytes};
}

const SharedGroup::Note& SharedGroup::meet(size_t rank, Rest& rest) {
  if (rank != me()) reach(rank, round_, rest);
  const Note &mine = place(me()).notes[round_ & 1], &other = place(rank).notes[round_ & 1];
  const auto name = [](const Note& note) {
    const auto call = static_cast<size_t>(note.call);
    return std::string(call < std::size(call_names) ? call_names[call] : "?") + " of " +
           std::to_string(note.bytes) + " bytes";
  };
  if (other.call != mine.call || other.bytes != mine.bytes)
    throw CallsDiffer("[group] all ranks must make the same call; rank " +
                      std::to_string(members_[rank]) + " made " + name(other) + ", rank " +
                      std::to_string(members_[me()]) + " " + name(mine) + ".");
  return other;
}

void SharedGroup::meet_all(Rest& rest) {
  for (size_t i = 0; i < size(); ++i) meet(i, rest);
}

void SharedGroup::all_reduce(float* x, int64_t count, Rest& rest) {
  constexpr size_t block = 512;
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  for (size_t round = 0; round < rounds_of(bytes, area_bytes_); ++round) {
    begin(Call::all_reduce, 0, bytes, rest);
    char* const part = reinterpret_cast<char*>(x) + round * area_bytes_;
    const size_t piece = piece_of(bytes, round * area_bytes_, area_bytes_);
    copy(area(me()), part, piece);
    publish();
    meet_all(rest);
    float sums[block];
    for (size_t at = 0; at < piece; at += sizeof(sums)) {
      const size_t part_bytes = std::min(sizeof(sums), piece - at);
      std::memcpy(sums, area(0) + at, part_bytes);
      for (size_t rank = 1; rank < size(); ++rank) {
        const float* other = reinterpret_cast<const float*>(area(rank) + at);
        for (size_t i = 0; i < part_bytes / sizeof(float); ++i) sums[i] += other[i];
      }
      std::memcpy(part + at, sums, part_bytes);
    }
  }
}

void SharedGroup::gather(const char* part, const std::vector<size_t>& widths, size_t rows,
                         char* out, int root, Rest& rest) {
  size_t row_bytes = 0;
  for (const size_t width : widths) row_bytes += width;
  const size_t longest = rows * *std::max_element(widths.begin(), widths.end());
  for (size_t round = 0; round < rounds_of(longest, area_bytes_); ++round) {
    const size_t first = round * area_bytes_;
    const auto piece = [&](size_t rank) {
      return piece_of(rows * widths[rank], first, area_bytes_);
    };
    begin(Call::gather, 0, rows * row_bytes, rest);
    if (root != rank_ && size() > 1) copy(area(me()), part + first, piece(me()));
    publish();
    if (root >= 0 && root != rank_) continue;
    size_t column = 0;
    for (size_t rank = 0; rank < size(); column += widths[rank++]) {
      meet(rank, rest);
      const char* from = rank == me() ? part + first : area(rank);
      lay_rows(from, first, piece(rank), widths[rank], out + column, row_bytes);
    }
  }
}

void SharedGroup::all_to_all(const std::vector<Array>& parts, const std::vector<Array>& out,
                             Rest& rest) {
  // A slot of the area for each rank: the size of the whole part, then a piece of it.
  const size_t slot = area_bytes_ / size() / 64 * 64, room = slot - 64;
  size_t rounds = 1;
  for (const Array& part : parts) rounds = std::max(rounds, rounds_of(part.bytes, room));
  for (size_t round = 0; round < rounds; ++round) {
    const size_t first = round * room;
    begin(Call::all_to_all, static_cast<uint32_t>(rounds), 0, rest);
    for (size_t i = 0; i < size(); ++i) {
      char* place = area(me()) + i * slot;
      std::memcpy(place, &parts[i].bytes, sizeof(size_t));
      copy(place + 64, parts[i].data + first, piece_of(parts[i].bytes, first, room));
    }
    publish();
    size_t needed = rounds;
    for (size_t i = 0; i < size(); ++i) {
      needed = std::max<size_t>(needed, meet(i, rest).number);
      const char* place = area(i) + me() * slot;
      size_t bytes = 0;
      std::memcpy(&bytes, place, sizeof(bytes));
      if (bytes != out[i].bytes)
        throw CallsDiffer("[all_to_all] rank " + std::to_string(members_[i]) + " sends " +
                          std::to_string(bytes) + " bytes; " + std::to_string(out[i].bytes) +
                          " are expected.");
      copy(out[i].data + first, place + 64, piece_of(bytes, first, room));
    }
    rounds = needed;
  }
}

bool SharedGroup::any(bool flag, Rest& rest) {
  begin(Call::any, flag, 0, rest);
  publish();
  bool found = false;
  for (size_t i = 0; i < size(); ++i) found |= meet(i, rest).number != 0;
  return found;
}

}  // namespace quire
