#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/rows/team.h"

// Operations over ragged rows: one body for the CPU, CUDA and the emulator.
//
//   struct Op {
//     OpCall cost() const;                              // reads shapes only
//     std::int64_t rows() const;
//     void shapes(auto&& visit);                        // visit(array, count) per array in CPU memory, visit(kv) for KvRows
//     // KVLAB_EACH_OP: body for element i of a row, in no order
//     KVLAB_BOTH std::int64_t count(std::int64_t row) const;
//     KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const;
//     // KVLAB_ROW_OP: body for a row, by a team (kernels/rows/team.h)
//     template <class Team> KVLAB_BODY void operator()(const Team& team, std::int64_t row) const;
//     std::int64_t room(std::int64_t row) const;        // floats of scratch memory; optional
//     void results(auto&& visit);                       // visit(array, count) per array in CPU memory that the body writes; optional
//     static constexpr bool kInParallel = true;         // rows on all CPU cores; optional
//   };
//   KVLAB_ROW_OP(Op)
//
// The build compiles run_cpu and run_cuda from NAME_op.h. Such headers do not include each other.
namespace kvlab {

template <class Op>
concept HasRoom = requires(const Op& op) {
  { op.room(std::int64_t{}) } -> std::convertible_to<std::int64_t>;
};
template <class Op>
concept RunsInParallel = Op::kInParallel;

// Floats, in whole 16 bytes.
template <class Op>
std::int64_t most_room(const Op& op) {
  std::int64_t most = 0;
  if constexpr (HasRoom<Op>) {
    for (std::int64_t r = 0; r < op.rows(); ++r) most = std::max<std::int64_t>(most, op.room(r));
  }
  return (most + 3) / 4 * 4;
}

template <class Op>
void run_row(const Op& op, std::int64_t row) {
  if constexpr (HasRoom<Op>) {
    std::vector<float> room(static_cast<std::size_t>(op.room(row)));
    op(OneThread(room.data()), row);
  } else {
    op(OneThread(nullptr), row);
  }
}

template <class Op>
void run_rows(const Op& op) {
  if constexpr (RunsInParallel<Op>) {
    for_each_in_parallel(op.rows(), [&](std::int64_t row) { run_row(op, row); });
  } else {
    for (std::int64_t row = 0; row < op.rows(); ++row) run_row(op, row);
  }
}

template <class Op>
void run_each(const Op& op) {
  for (std::int64_t row = 0; row < op.rows(); ++row) {
    const std::int64_t n = op.count(row);
    for (std::int64_t i = 0; i < n; ++i) op(row, i);
  }
}

}  // namespace kvlab

// Headers are compiled twice more: as CPU code for vector units and as kernels.
#if defined(KVLAB_ROW_KERNELS)
#define KVLAB_ROW_OP_ON(Op, on_cpu, on_device)           \
  inline OpCall call(const Op& op) { return op.cost(); } \
  void run_cuda(const Op& op, CudaContext& cuda) { on_device(op, cuda); }
#elif defined(KVLAB_ROW_CPU)
#define KVLAB_ROW_OP_ON(Op, on_cpu, on_device)           \
  inline OpCall call(const Op& op) { return op.cost(); } \
  void run_cpu(const Op& op) { on_cpu(op); }             \
  KVLAB_WITHOUT_CUDA(Op)
#else
#define KVLAB_ROW_OP_ON(Op, on_cpu, on_device)           \
  inline OpCall call(const Op& op) { return op.cost(); } \
  void run_cpu(const Op& op);                            \
  void run_cuda(const Op& op, CudaContext& cuda);
#endif
#define KVLAB_ROW_OP(Op) KVLAB_ROW_OP_ON(Op, run_rows, run_rows_on_device)
#define KVLAB_EACH_OP(Op) KVLAB_ROW_OP_ON(Op, run_each, run_each_on_device)
