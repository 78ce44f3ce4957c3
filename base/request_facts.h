#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/time.h"

namespace kvlab {

// Inline: facts are trivially copyable.
class ClassName {
 public:
  static constexpr std::size_t kMaxBytes = 23;
  ClassName() = default;
  // Cuts after kMaxBytes.
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
  std::int32_t predicted_output = 0;    // in tokens; 0: not given
  std::int32_t turn = -1;               // in the program or session; -1: not given
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
  if (fact == Fact::kClient) return facts->client >= 0;
  if (fact == Fact::kClass) return !facts->request_class.is_empty();
  if (fact == Fact::kPriority) return facts->priority != RequestFacts::kNoPriority;
  if (fact == Fact::kTtftSlo) return facts->ttft_slo >= Span{0};
  if (fact == Fact::kTpotSlo) return facts->tpot_slo >= Span{0};
  if (fact == Fact::kTbtSlo) return facts->tbt_slo >= Span{0};
  if (fact == Fact::kPredictedOutput) return facts->predicted_output > 0;
  if (fact == Fact::kProgram) return facts->program >= 0;
  if (fact == Fact::kTurn) return facts->turn >= 0;
  return fact == Fact::kImages && facts->images > 0;
}

}  // namespace kvlab
