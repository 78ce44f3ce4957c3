#include <algorithm>

#include "kernels/score/head_scores_op.h"
#include "kernels/select/mean_query_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/prefill_selector/prompt_rows.h"

namespace kvlab {

namespace {

// Each chunk also attends to itself, the first and the preceding tokens.
class TokenVotes final : public PrefillSelector {
 public:
  explicit TokenVotes(Params& p)
      : chunk_(p.optional<std::int32_t>("chunk_tokens", 512, 1, 1 << 20, "queries that elect together; larger chunks are cut into such")),
        sinks_(p.optional<std::int32_t>("sink_tokens", 128, 0, 1 << 26, "first tokens of the prompt")),
        recent_(p.optional<std::int32_t>("recent_tokens", 512, 0, 1 << 26, "newest tokens before a chunk")),
        top_(p.optional<std::int32_t>("top_tokens", 2048, 1, 1 << 26, "elected tokens between them")) {}

  std::int64_t attend(const PromptChunk& chunk) override {
    std::int64_t pairs = 0;
    for (std::int32_t begin = chunk.seq.seen_tokens; begin < chunk.seq.end(); begin += chunk_)
      pairs += attend_piece(piece_of(chunk, begin, std::min(begin + chunk_, chunk.seq.end())));
    return pairs;
  }

 private:
  static PromptChunk piece_of(const PromptChunk& chunk, std::int32_t begin, std::int32_t end) {
    const std::int64_t rows = begin - chunk.seq.seen_tokens, heads = chunk.model.q_heads, width = heads * chunk.model.head_dim;
    PromptChunk piece = chunk;
    piece.seq.seen_tokens = begin, piece.seq.new_tokens = end - begin;
    if (chunk.q != nullptr) piece.q += rows * width, piece.out += rows * width;
    if (chunk.log_sum != nullptr) piece.log_sum += rows * heads;
    return piece;
  }

  std::int64_t attend_piece(const PromptChunk& piece) {
    Ops& ops = piece.ops;
    const Ops::Frame frame(ops);
    const std::int32_t before = piece.seq.seen_tokens, candidates = before - sinks_ - recent_;
    ChosenPrefill op = chosen_prefill(piece);
    std::int32_t* const queries = ops.host_ints(1);
    queries[0] = piece.seq.new_tokens, op.queries = queries;
    if (candidates > top_) {
      std::int64_t* const first = ops.host_longs(2);
      first[0] = 0, first[1] = top_, op.first = first;
      op.base = op.head = sinks_, op.tail = before - recent_;
      op.index = elect(piece, first, candidates);
    }
    ops(op);
    return chosen_pairs(op);
  }

  const std::int32_t* elect(const PromptChunk& piece, const std::int64_t* index_first, std::int32_t candidates) const {
    Ops& ops = piece.ops;
    const ModelShape& m = piece.model;
    const Queries all = prompt_queries(piece, piece.seq.seen_tokens, piece.seq.end());
    MeanQuery mean{1, m.q_heads * m.head_dim, &all, ops.floats(std::int64_t{m.q_heads} * m.head_dim)};
    ops(mean);
    const Queries elector{mean.mean, 1, piece.seq.seen_tokens};
    std::int64_t* const first = ops.host_longs(2);
    std::int32_t *begin = ops.host_ints(1), *keep = ops.host_ints(1);
    first[0] = 0, first[1] = candidates, begin[0] = sinks_, keep[0] = top_;
    HeadScores votes{prompt_rows(piece, piece.seq.seen_tokens), &elector, first, ops.floats(candidates), HeadScores::Kind::kVotes, begin};
    ops(votes);
    std::int32_t* const index = ops.ints(top_);
    ops(TopK{1, first, votes.out, keep, index_first, index});
    return index;
  }

  std::int32_t chunk_, sinks_, recent_, top_;
};

KVLAB_REGISTER(PrefillSelector, TokenVotes, "token_votes",
               "chunks attend to tokens that all heads of a layer elect by the chunk's mean query",
               "TokenSelect: Wu et al. 2024, arXiv:2411.02886");

}  // namespace

}  // namespace kvlab
