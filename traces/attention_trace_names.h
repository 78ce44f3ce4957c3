#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace kvlab {

// Shared by reader and writer.
inline constexpr std::string_view kAttentionFormat = "kvlab-attention-trace-1";
inline constexpr std::array<std::string_view, 6> kLayerKinds{"q", "k", "v", "hidden", "pre_q", "pre_k"};  // as in L0.q
inline constexpr std::size_t kNumPassKinds = 4;                                                           // q, k, v, hidden
inline constexpr std::string_view kGradientKind = "gradient";                                             // extra passes only
inline constexpr std::array<std::string_view, 3> kWeightKinds{"W_o", "W_q", "b_q"};                       // as in W_o.L0

// Between dots in tensor names.
inline bool is_pass_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !name.empty() && name.find_first_not_of(kAllowed) == std::string_view::npos;
}

}  // namespace kvlab
