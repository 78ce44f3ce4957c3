#include <array>
#include <limits>

#include "traces/fact_columns.h"
#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Our own lossless format.
class KvlabJsonl final : public JsonReader {
 public:
  static bool recognises(std::string_view line) { return object_has(line, "prompt_tokens"); }
  KvlabJsonl(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& /*own*/)
      : JsonReader(std::move(lines), options, "arrival_ns", 0) {}

 private:
  static constexpr std::int64_t kMaxSession = std::numeric_limits<std::int64_t>::max();
  enum Key : std::uint8_t { kTime, kPrompt, kOutput, kSession, kDelay, kHashTokens, kHashes, kFacts };
  static constexpr auto kKeys = [] {
    std::array<std::string_view, kFacts + kFactColumns.size()> keys{"arrival_ns", "prompt_tokens", "output_tokens", "session",
                                                                    "delay_ns",   "hash_tokens",   "hashes"};
    for (std::size_t i = 0; i < kFactColumns.size(); ++i) keys[kFacts + i] = kFactColumns[i];
    return keys;
  }();

  bool read_row(TraceRequest& request) override {
    hashes_.clear();
    bool has_arrival = false;
    facts_ = {};
    const bool found = rows_.next(kKeys, [&](std::size_t key, JsonField field) {
      if (key == kTime) has_arrival = true, request.arrival = Time(Span(field.integer(0, kMaxTraceNs)));
      if (key == kPrompt) request.prompt_tokens = field.prompt_tokens();
      if (key == kOutput) request.output_tokens = field.output_tokens();
      if (key == kSession) request.session = field.integer(0, kMaxSession);
      if (key == kDelay) request.is_follow_up = true, request.delay = Span(field.integer(0, kMaxTraceNs));
      if (key == kHashTokens) request.hash_tokens = static_cast<std::int32_t>(field.integer(1, kMaxTokens));
      if (key == kHashes) field.unsigned_list(hashes_);
      if (key < kFacts) return;
      read_fact(static_cast<Fact>(key - kFacts), field, facts_);
      request.facts = &facts_;
    });
    if (!found) return false;
    if (request.prompt_tokens == 0) fail_missing_key(lines(), "prompt_tokens");
    if (request.output_tokens == 0) fail_missing_key(lines(), "output_tokens");
    if (request.is_follow_up && has_arrival) lines().fail("delay_ns", "a row has either an arrival or a delay after the turn before it");
    if (request.is_follow_up && request.session < 0) lines().fail("delay_ns", "a row with a delay needs a session");
    if (!request.is_follow_up && !has_arrival) request.arrival = arrival_of_row_without();
    request.hashes = hashes_;
    check_hashes(lines(), request);
    return true;
  }

  std::vector<std::uint64_t> hashes_;
  RequestFacts facts_;
};

KVLAB_REGISTER_TRACE(KvlabJsonl, "kvlab_jsonl", R"({"arrival_ns":...,"prompt_tokens":...,"output_tokens":...})", "our definition");

}  // namespace

}  // namespace kvlab
