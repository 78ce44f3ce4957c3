#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/cuda/memory.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

struct TokenRun {
  std::int32_t begin = 0, count = 0;
};

// Tokens, ascending, then spare entries.
struct RowList {
  std::vector<TokenRun> runs;
  std::int32_t tokens = 0, entries = 0;

  [[nodiscard]] bool is_full() const { return tokens == entries; }
  void append(TokenRun run);
  void append(const RowList& later);
};

// Rows [first_row, first_row + rows), from indices in CPU memory. Lists without tokens have no entries.
std::vector<RowList> row_lists(const ListedTokens& listed, std::int32_t first_row, std::int32_t rows);

// Tokens [0, len) in none of `lists`.
RowList tokens_outside(std::span<const RowList* const> lists, std::int32_t len);

// Not in a policy's log.
template <class Op>
void run_in(const TensorMemory& memory, const Op& op) {
  if (memory.on_host())
    run_cpu(op);
  else if constexpr (HasCudaKernel<Op>)
    run_cuda(op, *memory.cuda());
  else
    refuse_on_gpu(call(op).op);
}

// Rows [first_row, first_row + rows) as a batch.
class RowsView {
 public:
  RowsView(const KvRows& all, std::int32_t first_row, std::int32_t rows);
  // The first len[i] tokens of each.
  RowsView(const KvRows& all, std::int32_t first_row, std::span<const std::int32_t> len);
  RowsView(const RowsView&) = delete;
  RowsView& operator=(const RowsView&) = delete;
  [[nodiscard]] const KvRows& rows() const { return rows_; }

 private:
  std::vector<std::int64_t> first_;
  KvRows rows_;
};

// On a GPU indices are a frame's scratch.
class Listing {
 public:
  Listing(std::span<const RowList> lists, const TensorMemory& memory);
  // Row r: index[first[r]] to index[first[r + 1] - 1].
  Listing(std::vector<std::int64_t> first, std::vector<std::int32_t> index, const TensorMemory& memory);
  [[nodiscard]] ListedTokens of(const KvRows& rows, bool values) const { return {rows, first_.data(), index_, values}; }

 private:
  void settle_in(const TensorMemory& memory);
  std::optional<CudaContext::Frame> frame_;
  std::vector<std::int64_t> first_;
  std::vector<std::int32_t> host_index_;
  const std::int32_t* index_ = nullptr;
};

}  // namespace kvlab
