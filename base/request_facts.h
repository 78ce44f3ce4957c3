#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/time.h"

namespace kvlab {

// The name of a class of requests, held inside the object, so that facts can be copied byte by byte.
class ClassName {
 public:
  static constexpr std::size_t kMaxBytes = 23;
  ClassName() = default;
  // `text` has at most kMaxBytes bytes; longer ones are cut.
  explicit ClassName(std::string_view text) { text.copy(text_.data(), kMaxBytes); }
  [[nodiscard]] std::string_view text() const { return text_.data(); }
  [[nodiscard]] bool is_empty() const { return text_[0] == '\0'; }
  auto operator<=>(const ClassName&) const = default;

 private:
  std::array<char, kMaxBytes + 1> text_{};
};

// The optional columns of a trace: facts of a request beyond its lengths and content. Each has a value for "not given".
struct RequestFacts {
  static constexpr std::int32_t kNoPriority = INT32_MIN;
  static constexpr Span kNoTarget{-1};

  std::int64_t client = -1;             // column client: a number, or a hash of the text; -1: not given
  std::int64_t program = -1;            // column program: the requests of one agent or chain share it; -1: not given
  Span ttft_slo = kNoTarget;            // column ttft_slo_ms: target from arrival to the first token
  Span tpot_slo = kNoTarget;            // column tpot_slo_ms: target per output token after the first
  Span tbt_slo = kNoTarget;             // column tbt_slo_ms: target of each gap between tokens
  std::int32_t priority = kNoPriority;  // column priority: smaller is more urgent, as in vLLM
  std::int32_t predicted_output = 0;    // column predicted_output: output tokens that a predictor expects; 0: not given
  std::int32_t turn = -1;               // column turn: place in its program or session, from 0; -1: not given
  std::int32_t images = 0;              // column images: those in its prompt; their tokens are not in its prompt_tokens
  ClassName request_class;              // column class
  bool operator==(const RequestFacts&) const = default;
};

// The columns, in the order in which writers write them.
enum class Fact : std::uint8_t { kClient, kClass, kPriority, kTtftSlo, kTpotSlo, kTbtSlo, kPredictedOutput, kProgram, kTurn, kImages };
inline constexpr std::array<std::string_view, 10> kFactColumns{
    "client", "class", "priority", "ttft_slo_ms", "tpot_slo_ms", "tbt_slo_ms", "predicted_output", "program", "turn", "images"};
constexpr std::string_view column_of(Fact fact) { return kFactColumns[static_cast<std::size_t>(fact)]; }

// If `facts` (null: a request without any) gives that fact.
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
