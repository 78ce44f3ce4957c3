#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "kernels/storage/stored/row_list.h"
#include "kernels/storage/stored/row_numbers.h"
#include "kernels/storage/stored/rows_view.h"

// An operation Op that decodes stored K and V has
//   void stored_arrays(Op&, StoredArrays&)       its codes and parameters
// and optionally
//   bool goes_on(const Op&, const Op& later, std::span<const RowList>)   default: false
//   Decoder unpacking(const Op&)                 decodes later; default: sets the flag `unpacks`
//   std::unique_ptr<StoredCode> stored_code(const Op&, const EncodedRows&)   default: its arrays
namespace kvlab {

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
