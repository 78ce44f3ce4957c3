#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/time.h"

namespace kvlab {

// Inline, so that facts are trivially copyable.
class ClassName {
 public:
  static constexpr std::size_t kMaxBytes = 23;
  ClassName() = default;
  // Cut after kMaxBytes.
  explicit ClassName(std::string_view text) { text.copy(text_.data(), kMaxBytes); }
  [[nodiscard]] std::string_view text() const { return text_.data(); }
  [[nodiscard]] bool is_empty() const { return text_[0] == '\0'; }
  auto operator<=>(const ClassName&) const = default;

 private:
  std::array<char, kMaxBytes + 1> text_{};
};

// Optional columns of a trace.
struct RequestFacts {
  static constexpr std::int32_t kNoPriority = INT32_MIN;
  static constexpr Span kNoTarget{-1};

  std::int64_t client = -1;             // number, or hash of the text; -1: not given
  std::int64_t program = -1;            // of an agent or chain; -1: not given
  Span ttft_slo = kNoTarget;            // arrival to first token
  Span tpot_slo = kNoTarget;            // per output token after the first
  Span tbt_slo = kNoTarget;             // each gap between tokens
  std::int32_t priority = kNoPriority;  // smaller is more urgent, as in vLLM
  std::int32_t predicted_output = 0;    // tokens, by a predictor; 0: not given
  std::int32_t turn = -1;               // in its program or session; -1: not given
  std::int32_t images = 0;              // not counted in prompt_tokens
  ClassName request_class;
  bool operator==(const RequestFacts&) const = default;
};

// In the order written.
enum class Fact : std::uint8_t { kClient, kClass, kPriority, kTtftSlo, kTpotSlo, kTbtSlo, kPredictedOutput, kProgram, kTurn, kImages };
inline constexpr std::array<std::string_view, 10> kFactColumns{
    "client", "class", "priority", "ttft_slo_ms", "tpot_slo_ms", "tbt_slo_ms", "predicted_output", "program", "turn", "images"};
constexpr std::string_view column_of(Fact fact) { return kFactColumns[static_cast<std::size_t>(fact)]; }

// `facts` null: none given.
inline bool has_fact(const RequestFacts* facts, Fact fact) {
  if (facts == nullptr) return false;
  switch (fact) {
    case Fact::kClient:
      return facts->client >= 0;
    case Fact::kClass:
      return !facts->request_class.is_empty();
    case Fact::kPriority:
      return facts->priority != RequestFacts::kNoPriority;
    case Fact::kTtftSlo:
      return facts->ttft_slo >= Span{0};
    case Fact::kTpotSlo:
      return facts->tpot_slo >= Span{0};
    case Fact::kTbtSlo:
      return facts->tbt_slo >= Span{0};
    case Fact::kPredictedOutput:
      return facts->predicted_output > 0;
    case Fact::kProgram:
      return facts->program >= 0;
    case Fact::kTurn:
      return facts->turn >= 0;
    case Fact::kImages:
      return facts->images > 0;
  }
  return false;
}

}  // namespace kvlab
