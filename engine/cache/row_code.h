#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/listed_tokens.h"

namespace kvlab {

struct Cast;
struct Dequantize;
struct LowRankRebuild;
struct PruneChannels;
struct RestoreOutliers;
struct Unsparsify;

// A stretch of neighbouring tokens of a row.
struct TokenRun {
  std::int32_t begin = 0, count = 0;
};

// The tokens of one row's list, ascending, and entries behind them that stand for none.
struct RowList {
  std::vector<TokenRun> runs;
  std::int32_t tokens = 0, entries = 0;

  RowList(const ListedTokens& listed, std::int32_t row);
  [[nodiscard]] bool is_full() const { return tokens == entries; }
  void append(const RowList& later);
  [[nodiscard]] std::vector<std::int32_t> index() const;  // [entries], -1 for those that stand for no token
};

// K or V of some tokens of one row as a format stores them, in the host's memory: what one operation fills the row from.
class RowCode {
 public:
  explicit RowCode(RowList list) : list_(std::move(list)) {}
  RowCode(const RowCode&) = delete;
  RowCode& operator=(const RowCode&) = delete;
  virtual ~RowCode() = default;

  // What is encoded, and what it is decoded with. Which tokens they are is not counted: marks and positions tell it, too.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  // Fills the vectors of `listed`, which has one row and list().index().
  virtual void decode(const ListedTokens& listed) const = 0;
  // Takes over what `later` holds behind its own. False: that stays a code of its own.
  bool take_over(const RowCode& later);
  [[nodiscard]] const RowList& list() const { return list_; }

 protected:
  // The same without the list; lists have no entries that stand for no token.
  [[nodiscard]] virtual bool append(const RowCode& /*later*/) { return false; }

 private:
  RowList list_;
};

// What an operation that ran left of one of its rows; null where it lists nothing there. Its arrays are in the host's memory.
std::unique_ptr<RowCode> row_code(const Cast& op, std::int32_t row);
std::unique_ptr<RowCode> row_code(const Dequantize& op, std::int32_t row);
std::unique_ptr<RowCode> row_code(const LowRankRebuild& op, std::int32_t row);
std::unique_ptr<RowCode> row_code(const PruneChannels& op, std::int32_t row);
std::unique_ptr<RowCode> row_code(const RestoreOutliers& op, std::int32_t row);
std::unique_ptr<RowCode> row_code(const Unsparsify& op, std::int32_t row);

}  // namespace kvlab
