#include "base/error.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// Queries are weighted by the number of tokens they see.
class QuestionAttention final : public Scorer {
  enum class Weigh : std::uint8_t { kVisible, kVisibleMinusOne, kNone };

 public:
  explicit QuestionAttention(Params& p)
      : window_(p.optional<std::int32_t>("max_question_tokens", 256, 1, 4096, "queries of a longer question vote only from its end")),
        weigh_(p.choice("weigh", {{"visible", Weigh::kVisible}, {"visible_minus_one", Weigh::kVisibleMinusOne}, {"none", Weigh::kNone}},
                        Weigh::kVisible, "factor on a query's attention: tokens that it sees, one less (as kvpress counts), or 1")) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_, .question = true}; }

  void score(LayerStep& step, float* scores) override {
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    std::vector<Queries> asked;
    const auto sequences = static_cast<std::int64_t>(step.seqs.size());
    std::int32_t *zero = step.ops.host_ints(sequences), *begin = step.ops.host_ints(sequences);
    std::fill_n(zero, sequences, 0);
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      begin[s] = step.seqs[s].question_begin;
      if (begin[s] < 0)
        throw InputError("question_attention: sequence " + std::to_string(step.seqs[s].index) + " of the batch has no marked question");
      asked.push_back(queries_from(window[s], begin[s], step.model));
    }
    clear_scores(step, scores);
    step.ops(AttentionStats{.kv = step.kv,
                            .queries = asked.data(),
                            .weigh_by_visible = weigh_ != Weigh::kNone,
                            .visible_offset = weigh_ == Weigh::kVisibleMinusOne ? -1 : 0,
                            .sum = scores});
    step.ops(Protect{step.kv, zero, begin, scores});
  }

 private:
  std::int32_t window_;
  Weigh weigh_;
};

KVLAB_REGISTER(Scorer, QuestionAttention, "question_attention", "attention of the question's queries; the question stays",
               "FINCH: Corallo and Papotti 2024, arXiv:2408.00167");

}  // namespace

}  // namespace kvlab
