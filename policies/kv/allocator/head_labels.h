#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "policies/kv/allocator/counts.h"
#include "policies/kv/recipe/trained_tensors.h"

namespace kvlab {

// [layers, kv_heads]
// - kGates: gates (DuoAttention)
// - kInduction: kv_induction and kv_echo (RazorAttention)
enum class HeadLabel : std::uint8_t { kGates, kInduction };
inline constexpr std::initializer_list<Named<HeadLabel>> kLabels{{"gates", HeadLabel::kGates}, {"induction", HeadLabel::kInduction}};

class HeadLabels {
 public:
  HeadLabels() = default;  // none given
  // The top `frac` of KV heads, rounded; kInduction: first the top echo_frac by echo, then by induction. Ties: first. Throws InputError for
  // a missing tensor or another shape.
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

// Indices, ascending. Ties: first.
std::vector<std::int32_t> largest(std::span<const float> values, std::size_t count);

}  // namespace kvlab
