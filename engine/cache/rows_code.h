#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cache/row_list.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

struct Cast;
struct Dequantize;
struct LowRankRebuild;
struct PruneChannels;
struct RestoreOutliers;
struct Unsparsify;

// Rows [first_row, first_row + lists.size()) of an operation that ran in `memory`, and its lists of them.
struct EncodedRows {
  const TensorMemory& memory;
  std::int32_t first_row = 0;
  const std::vector<RowList>& lists;
};

// K or V of some tokens of a sequence's rows in one layer as a format stores them, in the memory of the rows: the codes that one operation
// fills them from. A sequence's rows are decoded all together, or in parts.
class RowsCode {
 public:
  explicit RowsCode(const EncodedRows& rows) : lists_(rows.lists), memory_(rows.memory) {}
  RowsCode(const RowsCode&) = delete;
  RowsCode& operator=(const RowsCode&) = delete;
  virtual ~RowsCode() = default;

  // Bytes of the codes and of the parameters to decode them. The lists of tokens are not counted, as marks and positions tell them too.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  // Fills the vectors of `listed`: its rows are rows [first_row, first_row + listed.kv.num_rows) of the code, with their lists.
  virtual void decode(const ListedTokens& listed, std::int32_t first_row) const = 0;
  // Appends the tokens of each row in `later` to its own. False: `later` stays a code of its own.
  bool take_over(const RowsCode& later);
  // Moves the codes to another memory. They are decoded where the rows are, so they must come back first.
  void move_to(const TensorMemory& memory) {
    move_numbers(memory);
    memory_ = memory;
  }
  [[nodiscard]] const std::vector<RowList>& lists() const { return lists_; }

 protected:
  // The same without the lists, which have no spare entries.
  [[nodiscard]] virtual bool append(const RowsCode& /*later*/) { return false; }
  virtual void move_numbers(const TensorMemory& memory) = 0;
  [[nodiscard]] const TensorMemory& memory() const { return memory_; }

 private:
  std::vector<RowList> lists_;
  TensorMemory memory_;
};

// The code that an operation made of the rows.
std::unique_ptr<RowsCode> rows_code(const Cast& op, const EncodedRows& rows);
std::unique_ptr<RowsCode> rows_code(const Dequantize& op, const EncodedRows& rows);
std::unique_ptr<RowsCode> rows_code(const LowRankRebuild& op, const EncodedRows& rows);
std::unique_ptr<RowsCode> rows_code(const PruneChannels& op, const EncodedRows& rows);
std::unique_ptr<RowsCode> rows_code(const RestoreOutliers& op, const EncodedRows& rows);
std::unique_ptr<RowsCode> rows_code(const Unsparsify& op, const EncodedRows& rows);

}  // namespace kvlab
