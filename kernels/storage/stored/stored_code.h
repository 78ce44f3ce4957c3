#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "kernels/storage/stored/rows_view.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

// Rows in one memory, in order.
template <class T>
class RowNumbers {
 public:
  struct Range {
    const T* from = nullptr;
    std::int64_t count = 0;
  };

  explicit RowNumbers(const TensorMemory& memory) : data_(memory) {}
  // Copies ranges of the same memory.
  RowNumbers(const TensorMemory& memory, std::span<const Range> rows) : data_(memory) {
    std::vector<std::int64_t> counts;
    for (const Range& row : rows) counts.push_back(row.count);
    lay_out(counts);
    data_.resize(first_.back());
    copy(rows);
  }

  // Not initialised; loses earlier numbers. Grows by an eighth more.
  T* make_room(const std::vector<std::int64_t>& counts) {
    lay_out(counts);
    if (first_.back() > data_.capacity()) {
      data_ = TensorArray<T>(data_.memory());
      data_.reserve(first_.back() + first_.back() / 8);
    }
    data_.resize(first_.back());
    return data_.data();
  }
  void append(const RowNumbers& later) {
    std::vector<std::int64_t> counts;
    for (std::int64_t r = 0; r < rows(); ++r) counts.push_back(count(r) + later.count(r));
    if (data_.memory().on_host() && first_.back() + later.first_.back() <= data_.capacity()) return append_here(later, counts);
    RowNumbers both(data_.memory());
    std::vector<Range> parts;
    for (std::int64_t r = 0; r < rows(); ++r) parts.insert(parts.end(), {{row(r), count(r)}, {later.row(r), later.count(r)}});
    static_cast<void>(both.make_room(counts));
    both.copy(parts);
    *this = std::move(both);
  }

  void move_to(const TensorMemory& memory) { data_.move_to(memory); }

  [[nodiscard]] std::int64_t rows() const { return std::ssize(first_) - 1; }
  [[nodiscard]] T* row(std::int64_t r) const { return data_.data() + first_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] std::int64_t count(std::int64_t r) const {
    return first_[static_cast<std::size_t>(r + 1)] - first_[static_cast<std::size_t>(r)];
  }
  [[nodiscard]] std::int64_t bytes() const { return data_.size() * std::int64_t{sizeof(T)}; }
  // Reads numbers only if the lengths are equal.
  friend bool operator==(const RowNumbers& a, const RowNumbers& b) {
    return a.first_ == b.first_ && (a.data_.size() == 0 || a.data_.on_host() == b.data_.on_host());
  }

 private:
  void lay_out(const std::vector<std::int64_t>& counts) {
    first_.assign(1, 0);
    for (const std::int64_t n : counts) first_.push_back(first_.back() + n);
  }
  // In CPU memory: rows move up, the last one first.
  void append_here(const RowNumbers& later, const std::vector<std::int64_t>& counts) {
    const std::vector<std::int64_t> old = first_;
    lay_out(counts);
    data_.resize(first_.back());
    for (std::int64_t r = rows() - 1; r >= 0; --r) {
      const std::int64_t begin = old[static_cast<std::size_t>(r)], n = old[static_cast<std::size_t>(r + 1)] - begin;
      std::memmove(row(r), data_.data() + begin, static_cast<std::size_t>(n) * sizeof(T));
      std::copy_n(later.row(r), later.count(r), row(r) + n);
    }
  }
  // Neighbouring ranges in one copy.
  void copy(std::span<const Range> ranges) {
    std::vector<cuda::CopyRange> copies;
    T* to = data_.data();
    for (const Range& range : ranges) {
      if (range.count == 0) continue;
      const std::int64_t bytes = range.count * std::int64_t{sizeof(T)};
      if (!copies.empty() &&
          static_cast<const char*>(copies.back().from) + copies.back().bytes == reinterpret_cast<const char*>(range.from))
        copies.back().bytes += bytes;
      else
        copies.push_back({to, range.from, bytes});
      to += range.count;
    }
    data_.memory().copy_ranges(copies);
  }

  TensorArray<T> data_;
  std::vector<std::int64_t> first_{0};  // [rows + 1]
};

// An operation Op that decodes stored K and V has
//   void stored_arrays(Op&, StoredArrays&)       its codes and parameters
// and optionally
//   bool goes_on(const Op&, const Op& later, std::span<const RowList>)   default: false
//   Decoder unpacking(const Op&)                 decodes later; default: sets the flag `unpacks`
//   std::unique_ptr<StoredCode> stored_code(const Op&, const EncodedRows&)   default: its arrays

// Rows [first_row, first_row + lists.size()), in `memory`.
struct EncodedRows {
  const TensorMemory& memory;
  std::int32_t first_row = 0;
  const std::vector<RowList>& lists;
};

// K or V of some tokens of a sequence's rows in one layer.
class StoredCode {
 public:
  explicit StoredCode(const EncodedRows& rows) : lists_(rows.lists), memory_(rows.memory) {}
  StoredCode(const StoredCode&) = delete;
  StoredCode& operator=(const StoredCode&) = delete;
  virtual ~StoredCode() = default;

  // Without token lists.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  // Fills `listed`: rows [first_row, first_row + listed.kv.num_rows).
  virtual void decode(const ListedTokens& listed, std::int32_t first_row) const = 0;
  // Appends later tokens, if possible.
  bool take_over(const StoredCode& later);
  // Codes must return to the rows' memory before decode().
  void move_to(const TensorMemory& memory) {
    move_numbers(memory);
    memory_ = memory;
  }
  [[nodiscard]] const std::vector<RowList>& lists() const { return lists_; }

 protected:
  [[nodiscard]] virtual bool append(const StoredCode& /*later*/) { return false; }
  virtual void move_numbers(const TensorMemory& memory) = 0;
  [[nodiscard]] const TensorMemory& memory() const { return memory_; }

 private:
  std::vector<RowList> lists_;
  TensorMemory memory_;
};

class StoredArrays {
 public:
  using NumbersOf = std::function<std::int64_t(std::int64_t entries)>;
  virtual ~StoredArrays() = default;
  // Numbers per row, 0 without entries.
  template <class T>
  void rows(T*& array, const NumbersOf& numbers_of) {
    set(array, of_rows(array, sizeof(T), numbers_of));
  }
  // Row r: numbers begin[r] to end[r] - 1; offsets in CPU memory.
  template <class T>
  void sized_rows(T*& array, const std::int64_t*& begin, const std::int64_t*& end) {
    set(array, of_sized_rows(array, sizeof(T), begin, end));
  }
  // [*, width]; row r has line line[r], in CPU memory. line null: none.
  template <class T>
  void lines(T*& array, const std::int32_t*& line, std::int64_t width) {
    set(array, of_lines(array, static_cast<std::int64_t>(sizeof(T)) * width, line));
  }
  // [num_sequences, width]. counts: false if the model has the array anyway.
  template <class T>
  void sequences(T*& array, std::int64_t width, bool counts = true) {
    set(array, of_sequences(array, static_cast<std::int64_t>(sizeof(T)) * width, counts));
  }

 protected:
  virtual const void* of_rows(const void* array, std::size_t number_bytes, const NumbersOf& numbers_of) = 0;
  virtual const void* of_sized_rows(const void* array, std::size_t number_bytes, const std::int64_t*& begin, const std::int64_t*& end) = 0;
  virtual const void* of_lines(const void* array, std::int64_t line_bytes, const std::int32_t*& line) = 0;
  virtual const void* of_sequences(const void* array, std::int64_t line_bytes, bool counts) = 0;

 private:
  template <class T>
  static void set(T*& array, const void* at) {
    array = static_cast<T*>(const_cast<void*>(at));
  }
};

class ArrayCopies {
 public:
  using Visit = std::function<void(StoredArrays&)>;
  // `visit`: the operation's arrays.
  ArrayCopies(const ListedTokens& listed, const EncodedRows& rows, const Visit& visit);
  [[nodiscard]] std::int64_t bytes() const;
  void move_to(const TensorMemory& memory);
  // Calls run() with these rows in the arrays of `visit`.
  void with(std::int32_t first_row, std::int32_t num_rows, const Visit& visit, const std::function<void()>& run) const;
  // False, unchanged, for sized rows or other lines.
  [[nodiscard]] bool append(const ArrayCopies& later);

 private:
  class Copier;
  class Pointer;
  enum class Kind : std::uint8_t { kRows, kSizedRows, kLines, kSequences, kUncounted };
  struct Copy {
    Kind kind;
    RowNumbers<std::uint8_t> numbers;
  };
  std::vector<Copy> copies_;
};

template <class Op>
Op unpacking(Op op) {
  if constexpr (requires { op.unpacks; }) op.unpacks = true;
  return op;
}
// True: joined codes equal codes of all tokens together.
template <class Op>
bool goes_on(const Op&, const Op&, std::span<const RowList>) {
  return false;
}

template <class Op>
class ArrayCode final : public StoredCode {
 public:
  ArrayCode(const Op& op, const EncodedRows& rows)
      : StoredCode(rows), op_(op), copies_(op_.tokens, rows, [this](StoredArrays& arrays) { stored_arrays(op_, arrays); }) {}

  [[nodiscard]] std::int64_t bytes() const override { return copies_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    Op op = op_;
    op.tokens = listed;
    copies_.with(
        first_row, listed.kv.num_rows, [&](StoredArrays& arrays) { stored_arrays(op, arrays); }, [&] { run_in(memory(), op); });
  }

 private:
  [[nodiscard]] bool append(const StoredCode& later) override {
    const auto* const more = dynamic_cast<const ArrayCode*>(&later);
    return more != nullptr && goes_on(op_, more->op_, std::span<const RowList>(lists())) && copies_.append(more->copies_);
  }
  void move_numbers(const TensorMemory& memory) override { copies_.move_to(memory); }

  Op op_;  // read only for null pointers
  ArrayCopies copies_;
};

template <class Op>
std::unique_ptr<StoredCode> stored_code(const Op& op, const EncodedRows& rows) {
  using Decoder = std::remove_cvref_t<decltype(unpacking(op))>;
  return std::make_unique<ArrayCode<Decoder>>(unpacking(op), rows);
}

class DecodeOp {
 public:
  virtual ~DecodeOp() = default;
  [[nodiscard]] virtual const ListedTokens& tokens() const = 0;
  [[nodiscard]] virtual OpCall unpack_cost() const = 0;
  [[nodiscard]] virtual std::unique_ptr<StoredCode> stored(const EncodedRows& rows) const = 0;
};

template <class Op>
class DecodeOpOf final : public DecodeOp {
 public:
  explicit DecodeOpOf(const Op& op) : op_(op) {}
  [[nodiscard]] const ListedTokens& tokens() const override { return op_.tokens; }
  [[nodiscard]] OpCall unpack_cost() const override { return call(unpacking(op_)); }
  [[nodiscard]] std::unique_ptr<StoredCode> stored(const EncodedRows& rows) const override { return stored_code(op_, rows); }

 private:
  Op op_;
};

}  // namespace kvlab
