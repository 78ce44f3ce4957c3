#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/tensor_memory.h"
#include "policies/kv/part.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

// By layer, place in the batch, and row (or sequence: head 0).
template <class T>
class PerRow final : public PartState {
 public:
  using PartState::PartState;
  T& at(const LayerStep& step, std::int32_t row) { return get(step.layer, seq_of(step, row).index, row % step.kv.kv_heads); }
  T& of_sequence(const LayerStep& step, std::int32_t sequence) {
    return get(step.layer, step.seqs[static_cast<std::size_t>(sequence)].index, 0);
  }
  // null: none
  [[nodiscard]] const T* find(std::int32_t layer, std::int32_t index, std::int32_t head) const {
    const auto l = static_cast<std::size_t>(layer), i = static_cast<std::size_t>(index), h = static_cast<std::size_t>(head);
    return l < layers_.size() && i < layers_[l].size() && h < layers_[l][i].size() ? &layers_[l][i][h] : nullptr;
  }
  void forget(std::int32_t index) override {
    for (auto& layer : layers_)
      if (static_cast<std::size_t>(index) < layer.size()) layer[static_cast<std::size_t>(index)].clear();
  }

 private:
  T& get(std::int32_t layer, std::int32_t index, std::int32_t head) { return grown(grown(grown(layers_, layer), index), head); }
  template <class V>
  static typename V::value_type& grown(V& v, std::int32_t i) {
    const auto at = static_cast<std::size_t>(i);
    if (at >= v.size()) v.resize(at + 1);
    return v[at];
  }
  std::vector<std::vector<std::vector<T>>> layers_;
};

// Allocates only in steps that compute.
template <class T>
class RowMemory {
 public:
  explicit RowMemory(KvPart& part) : memory_(part) {}
  // At least size(row) elements, earlier contents kept; valid until the next call.
  template <class Size>
  T* const* rows(const LayerStep& step, Size&& size) {
    return pointers(
        step, step.kv.num_rows, [&](std::int32_t r) -> TensorArray<T>& { return memory_.at(step, r); }, size);
  }
  template <class Size>
  T* const* sequences(const LayerStep& step, Size&& size) {
    return pointers(
        step, step.kv.num_sequences(), [&](std::int32_t s) -> TensorArray<T>& { return memory_.of_sequence(step, s); }, size);
  }
  void forget(std::int32_t index) { memory_.forget(index); }

 private:
  template <class Memory, class Size>
  T* const* pointers(const LayerStep& step, std::int32_t n, Memory&& memory, Size&& size) {
    pointers_.assign(static_cast<std::size_t>(n), nullptr);
    if (!step.ops.computes()) return pointers_.data();
    for (std::int32_t i = 0; i < n; ++i) {
      auto& own = memory(i);
      own.settle_in(step.memory());
      if (own.size() < static_cast<std::int64_t>(size(i))) own.resize(static_cast<std::int64_t>(size(i)), T{});
      pointers_[static_cast<std::size_t>(i)] = own.data();
    }
    return pointers_.data();
  }
  PerRow<TensorArray<T>> memory_;
  std::vector<T*> pointers_;
};

// Rows grow by appended tokens, unless some were evicted or another sequence took the place.
struct RowMark {
  std::int32_t len = -1, end = -1;  // tokens held; one past the sequence's last position
  [[nodiscard]] bool grew_to(const SeqStep& seq, std::int32_t len_now) const {
    return len >= 0 && seq.end() >= end && len_now - len == seq.end() - end;
  }
};

class RowProgress {
 public:
  explicit RowProgress(KvPart& part) : marks_(part) {}
  // First token per row not covered by summaries, 0 after an eviction. Marks all as covered.
  const std::int32_t* advance(const LayerStep& step) {
    return per_row(step, [&](std::int32_t r) {
      const SeqStep& seq = seq_of(step, r);
      RowMark& mark = marks_.at(step, r);
      // Runs at least once a step: any other end means that another sequence took the place.
      const bool follows = seq.seen_tokens > 0 && (mark.end == seq.seen_tokens || mark.end == seq.end());
      const std::int32_t from = follows && mark.grew_to(seq, step.kv.len[r]) ? mark.len : 0;
      mark = {step.kv.len[r], seq.end()};
      return from;
    });
  }

 private:
  PerRow<RowMark> marks_;
};

}  // namespace kvlab
