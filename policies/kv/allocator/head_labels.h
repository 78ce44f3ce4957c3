#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "policies/kv/allocator/counts.h"
#include "policies/kv/trained_tensors.h"

namespace kvlab {

// The tensors [layers, kv_heads] that rank KV heads.
//   kGates      gates: the largest retrieve. DuoAttention, Xiao et al. 2024, arXiv:2410.10819
//   kInduction  kv_induction, and for a share of them kv_echo. RazorAttention, Tang et al. 2024, arXiv:2407.15891
enum class HeadLabel : std::uint8_t { kGates, kInduction };
inline constexpr std::initializer_list<Named<HeadLabel>> kLabels{{"gates", HeadLabel::kGates}, {"induction", HeadLabel::kInduction}};

// Retrieval heads by a file of labels.
class HeadLabels {
 public:
  HeadLabels() = default;  // none given
  // The share `frac` of the model's KV heads retrieves, rounded to whole heads. With kInduction these are first the heads of largest echo,
  // echo_frac of all heads, then the heads of largest induction. The first of equal values is taken. InputError: a tensor is missing or no
  // table.
  HeadLabels(std::shared_ptr<const TrainedTensors> weights, HeadLabel label, double frac, double echo_frac);
  [[nodiscard]] bool are_given() const { return weights_ != nullptr; }
  [[nodiscard]] const std::vector<TableEntry>& retrieval_heads() const { return heads_; }
  [[nodiscard]] std::string refuses(const ModelShape& model) const;

 private:
  [[nodiscard]] const char* tensor() const { return label_ == HeadLabel::kGates ? "gates" : "kv_induction"; }
  std::shared_ptr<const TrainedTensors> weights_;
  HeadLabel label_ = HeadLabel::kGates;
  std::vector<TableEntry> heads_;
};

// Indices of the `count` largest values, ascending; the first of equal values is taken.
std::vector<std::int32_t> largest(std::span<const float> values, std::size_t count);

}  // namespace kvlab
