#include <fmt/format.h>

#include <array>
#include <optional>

#include "base/hash.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// LLMServingSim (Cho et al. 2024; github.com/casys-kaist/LLMServingSim), nanoseconds. A row is a request or an agent session: sub_requests,
// each tool_duration_ns after the last. Token ids become hash chains over `block_tokens`.
class LlmServingSim final : public JsonReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : block_tokens(
              p.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "llmservingsim: tokens per content hash made of token ids")) {}
    std::int32_t block_tokens;
  };
  static bool recognises(std::string_view line) { return object_has(line, "arrival_time_ns") || object_has(line, "input_toks"); }
  LlmServingSim(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "arrival_time_ns", 0), own_(own) {}

 private:
  enum Key : std::uint8_t { kInput, kOutput, kInputIds, kOutputIds, kTool, kTime, kSession, kSubRequests };
  static constexpr std::array<std::string_view, 8> kKeys{"input_toks",       "output_toks",     "input_tok_ids", "output_tok_ids",
                                                         "tool_duration_ns", "arrival_time_ns", "session_id",    "sub_requests"};
  static constexpr std::span<const std::string_view> kSubKeys = std::span(kKeys).first(kTime);

  struct Call {
    std::int32_t prompt_tokens = 0, output_tokens = 0;
    Span tool{};
    std::size_t hashes_end = 0;
  };
  struct Row {
    std::optional<Span> at;
    std::int64_t session = -1;
    bool is_agentic = false;
  };

  bool read_row(TraceRequest& request) override {
    while (given_ == calls_.size()) {
      if (!read_line()) return false;
      if (calls_.empty()) count("sessions with an empty sub_requests");
    }
    const Call& call = calls_[given_];
    request.prompt_tokens = call.prompt_tokens;
    request.output_tokens = call.output_tokens;
    request.session = row_.session;
    request.is_follow_up = given_ > 0;
    if (given_ > 0)
      request.delay = calls_[given_ - 1].tool;
    else
      request.arrival = Time(*row_.at);
    const std::size_t begin = given_ == 0 ? 0 : calls_[given_ - 1].hashes_end;
    request.hashes = std::span(hashes_).subspan(begin, call.hashes_end - begin);
    request.hash_tokens = request.hashes.empty() ? 0 : own_.block_tokens;
    ++given_;
    return true;
  }

  bool read_line() {
    row_ = Row{};
    calls_.clear();
    hashes_.clear();
    given_ = 0;
    start_call();
    bool is_flat = false;
    const bool found = rows_.next(kKeys, [&](std::size_t key, JsonField field) {
      if (key == kTime)
        row_.at = field.time(1);
      else if (key == kSession)
        row_.session = field.session();
      else if (key == kSubRequests)
        read_sub_requests(field, is_flat);
      else if (row_.is_agentic)
        field.fail("belongs into sub_requests here");
      else
        is_flat = true, read_call_field(key, field);
    });
    if (!found) return false;
    if (!row_.at) row_.at = arrival_of_row_without() - kStart;
    if (!row_.is_agentic) end_call();
    if (row_.is_agentic && row_.session < 0) row_.session = session_of_line();
    return true;
  }

  // Cannot equal a session_id by chance.
  [[nodiscard]] std::int64_t session_of_line() const {
    constexpr std::uint64_t kUnnamed = 0x73657373696f6e;  // "session"
    return static_cast<std::int64_t>(hash_combine(kUnnamed, static_cast<std::uint64_t>(lines().line_number())) >> 1);
  }

  void read_sub_requests(JsonField& field, bool is_flat) {
    if (is_flat) field.fail("a row is one request or has sub_requests, not both");
    row_.is_agentic = true;
    field.each_object(
        kSubKeys, [&](std::size_t key, JsonField inner) { read_call_field(key, inner); }, [&] { end_call(); });
  }

  void read_call_field(std::size_t key, JsonField field) {
    if (key == kInput) call_.prompt_tokens = field.prompt_tokens();
    if (key == kOutput) call_.output_tokens = field.output_tokens();
    if (key == kInputIds) field.unsigned_list(input_ids_);
    if (key == kOutputIds) field.unsigned_list(output_ids_);
    if (key == kTool) call_.tool = field.time(1);
  }

  void start_call() {
    call_ = Call{};
    input_ids_.clear();
    output_ids_.clear();
  }

  void end_call() {
    if (call_.prompt_tokens == 0) fail_missing_key(lines(), "input_toks");
    if (call_.output_tokens == 0) fail_missing_key(lines(), "output_toks");
    check_ids(kKeys[kInputIds], input_ids_, call_.prompt_tokens);
    check_ids(kKeys[kOutputIds], output_ids_, call_.output_tokens);
    if (!input_ids_.empty()) append_chain();
    call_.hashes_end = hashes_.size();
    calls_.push_back(call_);
    start_call();
  }

  void check_ids(std::string_view key, const std::vector<std::uint64_t>& ids, std::int32_t tokens) const {
    if (ids.empty() || ids.size() == static_cast<std::size_t>(tokens)) return;
    lines().fail(key, fmt::format("{} token ids, but the row says {} tokens", ids.size(), tokens));
  }

  void append_chain() {
    input_ids_.insert(input_ids_.end(), output_ids_.begin(), output_ids_.end());
    const auto block = static_cast<std::size_t>(own_.block_tokens);
    std::uint64_t chain = mix64(block);
    for (std::size_t begin = 0; begin + block <= input_ids_.size(); begin += block) {
      for (std::size_t i = begin; i < begin + block; ++i) chain = hash_combine(chain, input_ids_[i]);
      hashes_.push_back(chain);
    }
  }

  Options own_;
  Row row_;
  Call call_;
  std::vector<Call> calls_;  // of the row
  std::size_t given_ = 0;    // of calls_
  std::vector<std::uint64_t> input_ids_, output_ids_, hashes_;
};

KVLAB_REGISTER_TRACE(LlmServingSim, "llmservingsim", R"({"input_toks":...,"output_toks":...,"arrival_time_ns":...})",
                     "LLMServingSim: Cho et al. 2024, arXiv:2408.05499");

}  // namespace

}  // namespace kvlab
