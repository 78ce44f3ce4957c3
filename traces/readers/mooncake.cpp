#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Mooncake (Qin et al., FAST 2025; github.com/kvcache-ai/Mooncake), milliseconds. Dynamo's dialect has other column names, sessions, and
// `delay` after the session's previous turn.
class Mooncake final : public MooncakeReader {
 public:
  struct Options : MooncakeOptions {
    explicit Options(Params& p) : MooncakeOptions(p, "mooncake") {}
  };
  static bool recognises(std::string_view line) { return MooncakeRow::may_be(line); }
  Mooncake(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : MooncakeReader(std::move(lines), options, own) {}

 private:
  // Keys from wait_for on belong to agents, whose first row may lack them.
  static constexpr auto kKeys = with_mooncake_keys(std::array<std::string_view, 8>{
      "request_id", "request_kind", "output_token_ids", "wait_for", "tool_wait_ms", "branches", "prefix_reset", "tool_events"});

  bool read_row(TraceRequest& request) override {
    if (!next_row(kKeys)) return false;
    refuse_two_times();
    if (row_.delay && row_.session < 0) fail_missing_key(lines(), "session_id");
    request.prompt_tokens = row_.prompt_tokens;
    set_times(request);
    if (row_.has_ids) set_chained_ids(lines(), row_.ids, row_.block_of(lines(), own_.block_size), request);
    return true;
  }
};

KVLAB_REGISTER_TRACE(Mooncake, "mooncake", R"({"timestamp":...,"input_length":...,"output_length":...,"hash_ids":[...]})",
                     "Mooncake: Qin et al. 2024, arXiv:2407.00079");

}  // namespace

}  // namespace kvlab
