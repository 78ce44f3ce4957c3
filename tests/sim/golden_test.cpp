// Step logs of every scheduler on one small trace, against tests/sim/golden/NAME.txt. Those files carry the reasoning of their interesting
// lines as comments. KVLAB_UPDATE_GOLDEN=1 writes the logs anew and keeps comments before lines which are still there; read the difference
// before you commit it.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "serving/replica_state.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

// A line per step: number, start in ms, request:tokens@computed before, free blocks and waiting requests once it was planned;
// and one per event in a request's life that a step does not show.
struct StepLog final : RunSink {
  [[nodiscard]] bool wants_steps() const override { return true; }
  void step(const InFlightStep& s, const ReplicaState& state) override {
    std::string entries;
    for (const StepEntry& e : s.entries) entries += fmt::format(" {}:{}@{}", state.table()[e.request].number, e.tokens, e.computed_before);
    lines.push_back(fmt::format("{} {:.3f}{} free {} waiting {}", s.number, static_cast<double>(ns(to_time(s.start))) * 1e-6, entries,
                                state.free_blocks(), s.usage.waiting));
  }
  void event(const EventRecord& e) override {
    static const std::map<RequestEvent, const char*> kShown{{RequestEvent::kPreempted, "preempted"},
                                                            {RequestEvent::kSwappedOut, "swapped out"},
                                                            {RequestEvent::kSwappedIn, "swapped in"},
                                                            {RequestEvent::kFinished, "finished"},
                                                            {RequestEvent::kRejected, "rejected"}};
    const auto shown = kShown.find(e.event);
    if (shown == kShown.end()) return;
    lines.push_back(fmt::format("{:.3f} {} {}", static_cast<double>(ns(e.at)) * 1e-6, e.request, shown->second));
  }
  std::vector<std::string> lines;
};

struct Golden {
  std::string name, scheduler, parameters;
};

// 12 blocks of 4 tokens; a step takes 1 ms, a block 0.25 ms to swap. Request 6 fills the memory to the last block, request 10
// is longer than max_model_len.
std::vector<std::string> log_of(const Golden& golden) {
  SimSetup setup = basic_setup(golden.scheduler, golden.parameters);
  setup.memory.num_blocks = 12;
  setup.memory.block_tokens = 4;
  setup.memory.block_bytes = 0;
  setup.memory.host_blocks = 8;
  setup.memory.prefix_caching = false;
  setup.swap_link.call_time = Span(250'000);
  setup.max_model_len = 48;
  setup.timeline_interval = Span{0};
  setup.make_cost_model = linear_cost({.step = Picoseconds{1'000'000'000}, .token = {}, .kv_token = {}, .cell = 1 << 30});
  StepLog log;
  run_into(log, setup,
           {request_at(0, 8, 6), request_at(0, 14, 4), request_at(0.5, 5, 3), request_at(0.5, 20, 2), request_at(2.2, 4, 8),
            request_at(3.1, 8, 1), request_at(3.1, 46, 1), request_at(6.5, 12, 5), request_at(12.4, 3, 3), request_at(12.4, 16, 2),
            request_at(12.4, 60, 1), request_at(30, 9, 8), request_at(30, 9, 8), request_at(30, 9, 8), request_at(30, 9, 8)});
  return log.lines;
}

struct GoldenFile {
  std::vector<std::string> lines;                             // of the log
  std::vector<std::pair<std::string, std::string>> comments;  // and the line after each
};

GoldenFile read(const std::string& path) {
  GoldenFile file;
  std::ifstream in(path);
  std::string line, comment;
  while (std::getline(in, line)) {
    if (line.starts_with("#")) {
      comment += line + "\n";
      continue;
    }
    if (!comment.empty()) file.comments.emplace_back(std::exchange(comment, ""), line);
    file.lines.push_back(line);
  }
  return file;
}

void write(const std::string& path, const GoldenFile& old, const std::vector<std::string>& lines) {
  std::map<std::string, std::string> before;
  for (const auto& [comment, line] : old.comments) before[line] += comment;
  std::ofstream out(path);
  for (const std::string& line : lines) {
    if (const auto found = before.find(line); found != before.end()) {
      out << found->second;
      before.erase(found);
    }
    out << line << "\n";
  }
  for (const auto& [line, comment] : before) fmt::print("{}: dropped, its line is gone ({}):\n{}", path, line, comment);
}

class GoldenLog : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenLog, Matches) {
  const std::string path = std::string(KVLAB_SOURCE_DIR) + "/tests/sim/golden/" + GetParam().name + ".txt";
  const std::vector<std::string> lines = log_of(GetParam());
  const GoldenFile golden = read(path);
  if (std::getenv("KVLAB_UPDATE_GOLDEN") != nullptr) return write(path, golden, lines);
  ASSERT_FALSE(golden.lines.empty()) << path << " is missing; KVLAB_UPDATE_GOLDEN=1 writes it";
  for (std::size_t i = 0; i < std::min(lines.size(), golden.lines.size()); ++i)
    ASSERT_EQ(lines[i], golden.lines[i]) << path << ", log line " << i + 1;
  EXPECT_EQ(lines.size(), golden.lines.size()) << path;
}

INSTANTIATE_TEST_SUITE_P(
    Schedulers, GoldenLog,
    ::testing::Values(
        Golden{"static", "static", "{max_batch_seqs: 4, max_len_tokens: 16}"},
        Golden{"static_window", "static", "{max_batch_seqs: 4, max_len_tokens: 16, window_ms: 5}"},
        Golden{"orca_oracle", "orca", "{reservation: oracle}"}, Golden{"orca_pow2", "orca", "{reservation: pow2}"},
        Golden{"vllm_v0_watermark", "vllm_v0", "{watermark_frac: 0.1}"}, Golden{"vllm_v0_recompute", "vllm_v0", "{watermark_frac: 0}"},
        Golden{"vllm_v0_swap", "vllm_v0", "{watermark_frac: 0, preemption: swap}"},
        Golden{"vllm_v1_sync", "vllm_v1", "{budget_tokens: 16, async_scheduling: false}"},
        Golden{"vllm_v1_async", "vllm_v1", "{budget_tokens: 16}"}, Golden{"sarathi", "sarathi", "{budget_tokens: 16, watermark_frac: 0.1}"},
        Golden{"sarathi_2023", "sarathi", "{budget_tokens: 16, watermark_frac: 0, version: decode_maximal}"},
        Golden{"fastgen", "fastgen", "{forward_tokens: 16}"}, Golden{"sglang", "sglang", "{chunk_tokens: 16}"},
        Golden{"sglang_trusting", "sglang", "{chunk_tokens: 16, clip_tokens: 1, init_ratio: 0}"},
        Golden{"sglang_mixed", "sglang", "{chunk_tokens: 16, clip_tokens: 1, init_ratio: 0, mixed_chunk: true, overlap: false}"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvlab::testing
