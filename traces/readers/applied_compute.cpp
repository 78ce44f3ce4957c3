#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/hash.h"
#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Applied Compute's TRIE workloads (github.com/Applied-Compute/trie, README, "Workload format"): an agent with num_turns + 1 calls. Each
// prompt is all before and the tool's output; the next call follows the tool. No arrivals.
class AppliedCompute final : public JsonReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : block_tokens(p.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "applied_compute_agentic: tokens per content hash")) {}
    std::int32_t block_tokens;
  };
  static bool recognises(std::string_view line) { return object_has(line, "assistant_response_length"); }
  AppliedCompute(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "arrival", 0), own_(own) {}
  [[nodiscard]] bool has_arrivals() const override { return false; }

 private:
  enum Key : std::uint8_t { kTurns, kPrompt, kAnswers, kToolOutputs, kToolTimes, kFinal };
  static constexpr std::array<std::string_view, 6> kKeys{"num_turns",
                                                         "input_prompt_length",
                                                         "assistant_response_length",
                                                         "tool_call_output_length",
                                                         "tool_call_latency",
                                                         "final_assistant_response_length"};

  struct Row {
    std::int64_t num_turns = -1;
    std::int32_t prompt = 0, final_answer = 0;
    std::vector<std::uint64_t> answers, tool_outputs;
    std::vector<Span> tool_times;
  };

  bool read_row(TraceRequest& request) override {
    return queue_.next(request, [&] { return read_session(); });
  }

  bool read_session() {
    Row row;
    if (!rows_.next(kKeys, [&](std::size_t key, JsonField field) { read_field(key, field, row); })) return false;
    if (row.num_turns < 0) fail_missing_key(lines(), kKeys[kTurns]);
    if (row.prompt == 0) fail_missing_key(lines(), kKeys[kPrompt]);
    if (row.final_answer == 0) fail_missing_key(lines(), kKeys[kFinal]);
    check_count(kAnswers, row.answers.size(), row);
    check_count(kToolOutputs, row.tool_outputs.size(), row);
    check_count(kToolTimes, row.tool_times.size(), row);
    push_turns(row);
    return true;
  }

  void read_field(std::size_t key, JsonField field, Row& row) const {
    constexpr std::int64_t kMostTurns = 1'000'000;
    if (key == kTurns) row.num_turns = field.integer(0, kMostTurns);
    if (key == kPrompt) row.prompt = field.prompt_tokens();
    if (key == kAnswers) field.unsigned_list(row.answers);
    if (key == kToolOutputs) field.unsigned_list(row.tool_outputs);
    if (key == kToolTimes) field.time_list(kSecondNs, row.tool_times);
    if (key == kFinal) row.final_answer = field.output_tokens();
  }

  void check_count(Key key, std::size_t count, const Row& row) const {
    if (count != static_cast<std::size_t>(row.num_turns))
      lines().fail(kKeys[key], fmt::format("{} values, but num_turns is {}", count, row.num_turns));
  }

  void push_turns(const Row& row) {
    queue_.clear();
    const std::int64_t session = num_sessions_++;
    PieceHashes content(own_.block_tokens, static_cast<std::uint64_t>(session) + 1);
    RequestFacts facts;
    facts.program = session;
    std::int64_t prompt = row.prompt;
    content.append(0, row.prompt);
    for (std::size_t turn = 0; turn <= row.answers.size(); ++turn) {
      const bool is_last = turn == row.answers.size();
      const std::int64_t answer = is_last ? row.final_answer : tokens_of(kAnswers, row.answers[turn], 1);
      content.append(2 * turn + 1, static_cast<std::int32_t>(answer));
      if (prompt + answer > kMaxTokens) lines().fail(kKeys[kTurns], fmt::format("turn {} is longer than {} tokens", turn, kMaxTokens));
      facts.turn = static_cast<std::int32_t>(turn);
      TraceRequest request;
      request.prompt_tokens = static_cast<std::int32_t>(prompt);
      request.output_tokens = static_cast<std::int32_t>(answer);
      request.session = session;
      request.is_follow_up = turn > 0;
      if (turn > 0) request.delay = row.tool_times[turn - 1];
      request.hashes = content.hashes();
      request.hash_tokens = content.hashes().empty() ? 0 : own_.block_tokens;
      request.facts = &facts;
      queue_.push(request);
      if (is_last) break;
      const std::int64_t tool = tokens_of(kToolOutputs, row.tool_outputs[turn], 0);
      content.append(2 * turn + 2, static_cast<std::int32_t>(tool));
      prompt += answer + tool;
    }
  }

  [[nodiscard]] std::int64_t tokens_of(Key key, std::uint64_t value, std::uint64_t fewest) const {
    if (value < fewest || value > static_cast<std::uint64_t>(kMaxTokens))
      lines().fail(kKeys[key], fmt::format("{} in the list is not a whole number from {} to {}", value, fewest, kMaxTokens));
    return static_cast<std::int64_t>(value);
  }

  Options own_;
  TurnQueue queue_;
  std::int64_t num_sessions_ = 0;
};

KVLAB_REGISTER_TRACE(AppliedCompute, "applied_compute_agentic",
                     R"({"num_turns":...,"input_prompt_length":...,"assistant_response_length":[...],"tool_call_output_length":[...],...})",
                     "Applied Compute, TRIE workloads");

}  // namespace

}  // namespace kvlab
