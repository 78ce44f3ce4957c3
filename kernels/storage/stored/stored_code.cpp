#include "kernels/storage/stored/stored_code.h"

#include <algorithm>
#include <numeric>

namespace kvlab {

bool StoredCode::take_over(const StoredCode& later) {
  const auto is_full = [](const RowList& list) { return list.is_full(); };
  if (!std::all_of(lists_.begin(), lists_.end(), is_full) || !std::all_of(later.lists_.begin(), later.lists_.end(), is_full)) return false;
  if (!append(later)) return false;
  for (std::size_t h = 0; h < lists_.size(); ++h) lists_[h].append(later.lists_[h]);
  return true;
}

class ArrayCopies::Copier final : public StoredArrays {
 public:
  Copier(const ListedTokens& listed, const EncodedRows& rows, std::vector<Copy>& copies) : listed_(listed), rows_(rows), copies_(copies) {}

 private:
  using Ranges = std::vector<RowNumbers<std::uint8_t>::Range>;
  static const std::uint8_t* bytes_at(const void* array) { return static_cast<const std::uint8_t*>(array); }
  void add(Kind kind, const Ranges& ranges) { copies_.push_back({kind, {rows_.memory, ranges}}); }

  const void* of_rows(const void* array, std::size_t number_bytes, const NumbersOf& numbers_of) override {
    const auto bytes_of = [&](std::int64_t entries) {
      return entries == 0 ? 0 : numbers_of(entries) * static_cast<std::int64_t>(number_bytes);
    };
    const std::uint8_t* at = bytes_at(array);
    for (std::int32_t r = 0; r < rows_.first_row; ++r) at += bytes_of(listed_.entries(r));
    Ranges ranges;
    for (std::size_t h = 0; h < rows_.lists.size(); ++h) {
      ranges.push_back({at, bytes_of(rows_.lists[h].entries)});
      at += bytes_of(listed_.entries(rows_.first_row + static_cast<std::int32_t>(h)));
    }
    add(Kind::kRows, ranges);
    return array;
  }
  const void* of_sized_rows(const void* array, std::size_t number_bytes, const std::int64_t*& begin, const std::int64_t*& end) override {
    const auto width = static_cast<std::int64_t>(number_bytes);
    Ranges ranges;
    for (std::size_t h = 0; h < rows_.lists.size(); ++h) {
      const std::size_t r = static_cast<std::size_t>(rows_.first_row) + h;
      const bool is_listed = rows_.lists[h].entries > 0;
      ranges.push_back({bytes_at(array) + begin[r] * width, is_listed ? (end[r] - begin[r]) * width : 0});
    }
    add(Kind::kSizedRows, ranges);
    return array;
  }
  const void* of_lines(const void* array, std::int64_t line_bytes, const std::int32_t*& line) override {
    Ranges ranges;
    for (std::size_t h = 0; line != nullptr && h < rows_.lists.size(); ++h)
      ranges.push_back({bytes_at(array) + line[static_cast<std::size_t>(rows_.first_row) + h] * line_bytes, line_bytes});
    add(Kind::kLines, ranges);
    return array;
  }
  const void* of_sequences(const void* array, std::int64_t line_bytes, bool counts) override {
    Ranges ranges{{nullptr, 0}};
    if (array != nullptr) ranges.front() = {bytes_at(array) + listed_.kv.sequence(rows_.first_row) * line_bytes, line_bytes};
    add(counts ? Kind::kSequences : Kind::kUncounted, ranges);
    return array;
  }

  const ListedTokens& listed_;
  const EncodedRows& rows_;
  std::vector<Copy>& copies_;
};

class ArrayCopies::Pointer final : public StoredArrays {
 public:
  Pointer(const std::vector<Copy>& copies, std::int32_t first_row, std::int32_t num_rows)
      : next_(copies.begin()), first_row_(first_row), line_(static_cast<std::size_t>(num_rows)) {
    std::iota(line_.begin(), line_.end(), 0);
  }

 private:
  const void* of_rows(const void*, std::size_t, const NumbersOf&) override { return (next_++)->numbers.row(first_row_); }
  const void* of_sized_rows(const void*, std::size_t number_bytes, const std::int64_t*& begin, const std::int64_t*& end) override {
    const RowNumbers<std::uint8_t>& numbers = (next_++)->numbers;
    bounds_.assign(1, 0);
    for (std::size_t r = 0; r < line_.size(); ++r)
      bounds_.push_back(bounds_.back() +
                        numbers.count(first_row_ + static_cast<std::int64_t>(r)) / static_cast<std::int64_t>(number_bytes));
    begin = bounds_.data(), end = bounds_.data() + 1;
    return numbers.row(first_row_);
  }
  const void* of_lines(const void*, std::int64_t, const std::int32_t*& line) override {
    const RowNumbers<std::uint8_t>& numbers = (next_++)->numbers;
    if (numbers.rows() == 0) {
      line = nullptr;
      return nullptr;
    }
    line = line_.data();
    return numbers.row(first_row_);
  }
  const void* of_sequences(const void* array, std::int64_t, bool) override {
    const RowNumbers<std::uint8_t>& numbers = (next_++)->numbers;
    return array == nullptr ? nullptr : numbers.row(0);
  }

  std::vector<Copy>::const_iterator next_;
  std::int32_t first_row_;
  std::vector<std::int32_t> line_;
  std::vector<std::int64_t> bounds_;
};

ArrayCopies::ArrayCopies(const ListedTokens& listed, const EncodedRows& rows, const Visit& visit) {
  Copier copier(listed, rows, copies_);
  visit(copier);
}

std::int64_t ArrayCopies::bytes() const {
  std::int64_t bytes = 0;
  for (const Copy& copy : copies_)
    if (copy.kind != Kind::kUncounted) bytes += copy.numbers.bytes();
  return bytes;
}

void ArrayCopies::move_to(const TensorMemory& memory) {
  for (Copy& copy : copies_) copy.numbers.move_to(memory);
}

void ArrayCopies::with(std::int32_t first_row, std::int32_t num_rows, const Visit& visit, const std::function<void()>& run) const {
  Pointer pointer(copies_, first_row, num_rows);
  visit(pointer);
  run();
}

bool ArrayCopies::append(const ArrayCopies& later) {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].kind == Kind::kSizedRows) return false;
    if (copies_[i].kind != Kind::kRows && !(copies_[i].numbers == later.copies_[i].numbers)) return false;
  }
  for (std::size_t i = 0; i < copies_.size(); ++i)
    if (copies_[i].kind == Kind::kRows) copies_[i].numbers.append(later.copies_[i].numbers);
  return true;
}

}  // namespace kvlab
