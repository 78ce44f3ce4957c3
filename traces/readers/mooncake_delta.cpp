#include <fmt/format.h>

#include <optional>
#include <unordered_map>

#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Mooncake rows of only the tokens that a turn adds to its session's prompt (Dynamo, docs/dynosim/trace-formats.md, "Mooncake Delta"),
// including the previous answer if it returns.
class MooncakeDelta final : public MooncakeReader {
 public:
  struct Options : MooncakeOptions {
    explicit Options(Params& p) : MooncakeOptions(p, "mooncake_delta") {}
  };
  static constexpr bool kIsGuessed = false;
  static bool recognises(std::string_view line) { return MooncakeRow::may_be(line); }
  MooncakeDelta(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : MooncakeReader(std::move(lines), options, own) {}

 private:
  static constexpr auto kKeys = with_mooncake_keys(std::array<std::string_view, 3>{"request_id", "request_kind", "output_token_ids"});

  struct Prompt {
    std::int64_t tokens = 0;
    std::int32_t turn = 0;
    std::optional<PieceHashes> content;  // none after a turn without ids
    bool is_known = true;
  };

  bool read_row(TraceRequest& request) override {
    if (!next_row(kKeys)) return false;
    if (row_.session < 0) fail_missing_key(lines(), "session_id");
    refuse_two_times();
    Prompt& prompt = prompts_[row_.session];
    add_turn(prompt);
    request.prompt_tokens = static_cast<std::int32_t>(prompt.tokens);
    set_times(request);
    if (prompt.content && !prompt.content->hashes().empty()) {
      request.hash_tokens = prompt.content->chunk_tokens();
      request.hashes = prompt.content->hashes();
    }
    facts_ = {};
    facts_.turn = prompt.turn++;
    request.facts = &facts_;
    return true;
  }

  void add_turn(Prompt& prompt) {
    prompt.tokens += row_.prompt_tokens;
    if (prompt.tokens > kMaxTokens)
      lines().fail("input_length", fmt::format("the session's prompt grows to {} tokens; at most {} are read: are the rows whole prompts "
                                               "('format: mooncake')?",
                                               prompt.tokens, kMaxTokens));
    if (!row_.has_ids) prompt.is_known = false;
    if (!prompt.is_known) return;
    const std::int32_t block = row_.block_of(lines(), own_.block_size);
    check_ids(block);
    if (!prompt.content) prompt.content.emplace(block);
    if (prompt.content->chunk_tokens() != block)
      lines().fail("block_size", fmt::format("{} tokens per id, but the turns before have {}", block, prompt.content->chunk_tokens()));
    std::int32_t left = row_.prompt_tokens;
    for (const std::uint64_t id : row_.ids) {
      prompt.content->append(id, std::min(left, block));
      left -= std::min(left, block);
    }
  }

  void check_ids(std::int32_t block) const {
    const auto needed = static_cast<std::size_t>((row_.prompt_tokens + block - 1) / block);
    if (row_.ids.size() != needed)
      lines().fail("hash_ids", fmt::format("{} ids, but {} new tokens in blocks of {} need {}; is 'block_size: {}' right?", row_.ids.size(),
                                           row_.prompt_tokens, block, needed, block));
  }

  RequestFacts facts_;
  std::unordered_map<std::int64_t, Prompt> prompts_;
};

KVLAB_REGISTER_TRACE(
    MooncakeDelta, "mooncake_delta",
    R"({"session_id":...,"timestamp" or "delay":...,"input_length":...,"output_length":...,"hash_ids":[...]} of new tokens)",
    "Dynamo, trace formats of dynosim");

}  // namespace

}  // namespace kvlab
