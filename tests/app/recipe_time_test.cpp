// The time and the memory that recipes take in serving, against plain KV on the same requests.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>

#include "app/runs/kinds/run_kind.h"
#include "tests/app/app_fixture.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

struct Used {
  double cpu_s = 0, memory_mb = 0;
};

struct RecipeTime : AppTest {
  // Time of a child process for a run over requests of all lengths.
  static Used used(const std::string& kv_policy, const std::string& scheduler, int requests) {
    write("job.yaml",
          fmt::format("name: job\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: {}\nmax_model_len: 16384\ntimeline_interval_ms: 0\n"
                      "trace: {{generate: {{requests: {}, arrival: {{poisson: {{rate_per_s: 5}}}}, prompt_tokens: {{lognormal: {{median: "
                      "1020, mean: 1155, max: 8000}}}}, output_tokens: {{lognormal: {{median: 129, mean: 224, max: 1000}}}}}}}}\n"
                      "kv_policy: {}\n",
                      scheduler, requests, kv_policy));
    const pid_t child = ::fork();
    if (child == 0) ::_exit(call({"run", "job.yaml", "--jobs", "1", "--quiet", "--out", "job"}).status);
    int status = 0;
    rusage usage{};
    EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << kv_policy;
    fs::remove_all("job");
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
    return {seconds(usage.ru_utime), static_cast<double>(usage.ru_maxrss) / 1024};
  }
};

// Times the CPU time of plain KV, and the slack of machines that run other tests meanwhile; plain KV takes 10 ms.
constexpr double kMost = 30, kSlack = 3;

// Recipes that take longer, with a bound of about three times what was measured. Their layers or heads keep different numbers of tokens, so
// that a step runs all layers (d2o, duo, lazyllm_static, mpcache_dynamic, pyramidinfer, sliminfer and the pyramids), or a step depends on
// the prompt's length and its own in ways that are not affine (a2ats, rocketkv, zipcache).
const std::map<double, std::set<std::string>> kSlow{
    {160, {"kvpress_pyramidkv", "lazyllm_static", "mpcache_dynamic", "sliminfer", "windowkv", "zipcache", "zipvl_prefill"}},
    {180, {"{recipe: d2o, budget_frac: 0.5}", "d2o", "d2o_values"}},
    {220, {"a2ats", "duo"}},
    {340, {"rocketkv"}},
    {700, {"pyramidinfer"}},
};

std::vector<std::string> recipes_to_time() {
  std::vector<std::string> chosen{"{recipe: d2o, budget_frac: 0.5}", "{recipe: quest, budget_frac: 0.5}", "pyramidinfer", "triforce_cache"};
  const std::vector<std::string> all = recipes_in({"cost"});
  for (std::size_t i = 0; i < all.size(); i += full_run() ? 1 : short_run() ? 80 : 20)
    if (all[i] != "full") chosen.push_back(all[i]);
  return chosen;
}

TEST_F(RecipeTime, StaysNearThatOfPlainKv) {
  constexpr int kRequests = 240;
  const Used full = used("full", "vllm_v1", kRequests), again = used("full", "vllm_v1", kRequests);
  const double full_s = std::max(full.cpu_s, again.cpu_s);
  for (const std::string& kv_policy : recipes_to_time()) {
    const bool is_name = kv_policy.front() != '{';
    const std::string scheduler = is_name && shipped_recipe(kv_policy).prunes() ? "vllm_v0" : "vllm_v1";
    const Used one = used(kv_policy, scheduler, kRequests);
    const auto slow = std::find_if(kSlow.begin(), kSlow.end(), [&](const auto& bound) { return bound.second.contains(kv_policy); });
    const double most = slow != kSlow.end() ? slow->first : kMost * (full_run() ? 1 : kSlack);
    EXPECT_LE(one.cpu_s, most * full_s) << kv_policy << " takes " << one.cpu_s / full_s << " times the CPU time of 'full'";
    if (!full_run() && (is_name || short_run())) continue;
    const Used twice = used(kv_policy, scheduler, 2 * kRequests);
    EXPECT_LE(twice.memory_mb, one.memory_mb + 60) << kv_policy << " grows with the number of requests";
  }
}

TEST_F(RecipeTime, MemoryStaysWithTenTimesTheRequests) {
  for (const char* kv_policy : {"{recipe: d2o, budget_frac: 0.5}", "{recipe: quest, budget_frac: 0.5}"}) {
    const Used few = used(kv_policy, "vllm_v1", 100), many = used(kv_policy, "vllm_v1", 1000);
    EXPECT_LE(many.memory_mb, few.memory_mb + 80) << kv_policy;
    if (short_run()) return;
  }
}

constexpr std::array<const char*, 4> kGpus{"l4", "a100-40gb", "h100", "b200"};

// Every recipe that serves, on GPUs of four generations, in memory that full attention fills.
class EveryRecipeServes : public AppTest, public testing::WithParamInterface<std::size_t> {
 protected:
  // Runs the recipes and checks each one's row.
  void serve(const std::string& scheduler, const std::vector<std::string>& recipes) const {
    const std::string name_of_all = "every_" + scheduler;
    write("every.yaml", fmt::format("name: {}\nmodel: llama-3.1-8b\nhardware: {}\nmax_model_len: 4096\nmemory: {{num_blocks: 400}}\n"
                                    "trace: {{generate: {{requests: 8, arrival: {{poisson: {{rate_per_s: 50}}}}, prompt_tokens: {{uniform: "
                                    "{{min: 100, max: 2400}}}}, output_tokens: {{uniform: {{min: 10, max: 60}}}}}}}}\n"
                                    "scheduler: {}\nkv_policy: [{}]\n",
                                    name_of_all, kGpus.at(GetParam()), scheduler, fmt::join(recipes, ", ")));
    call_ok({"run", "every.yaml"});
    const CsvTable s = read_csv("results/" + name_of_all + "/summary.csv");
    ASSERT_EQ(s.rows.size(), recipes.size());
    for (const std::vector<std::string>& row : s.rows) {
      const std::string& name = row[s.at("kv_policy")];
      const auto count = [&](const char* column) { return std::stod(row[s.at(column)]); };
      EXPECT_EQ(count("completed") + count("rejected"), 8) << name;
      EXPECT_GE(count("completed"), 4) << name << ": a request is refused where its prompt alone does not fit";
      EXPECT_GT(count("kv_used_peak_frac"), 0) << name;
      EXPECT_LE(count("kv_used_peak_frac"), 1) << name;
      EXPECT_TRUE(name != "full" || count("kv_used_peak_frac") > 0.9) << "memory does not bind";
    }
  }
};

// A quarter of them on each GPU, so that each serves on one; with KVLAB_FULL all of them on each, in a short run fewer.
std::vector<std::string> recipes_to_serve(std::size_t gpu) {
  const std::vector<std::string> all = recipes_in({"cost"});
  std::vector<std::string> chosen;
  for (std::size_t i = full_run() ? 0 : gpu; i < all.size(); i += full_run() ? 1 : short_run() ? 9 : kGpus.size()) chosen.push_back(all[i]);
  if (std::find(chosen.begin(), chosen.end(), "full") == chosen.end()) chosen.emplace_back("full");
  return chosen;
}

TEST_P(EveryRecipeServes, InMemoryThatBinds) {
  std::vector<std::string> whole, others;  // whole: they take prompts in one piece, which vllm_v1 cuts
  for (const std::string& name : recipes_to_serve(GetParam())) (shipped_recipe(name).prunes() ? whole : others).push_back(name);
  serve("vllm_v1", others);
  if (!whole.empty()) serve("vllm_v0", whole);
}

INSTANTIATE_TEST_SUITE_P(Gpus, EveryRecipeServes, testing::Range(std::size_t{0}, kGpus.size()),
                         [](const auto& info) { return std::string(1, *kGpus.at(info.param)) + std::to_string(info.param); });

// Large inputs end in time, in memory, or in one line.

struct LargeInputsTest : AppTest {
  // Output of a run of three requests; its results are in results/few.
  static std::string output_of(const std::string& model, const std::string& hardware, const std::string& parallel) {
    write("few.yaml", "model: " + model + "\nhardware: " + hardware + "\nparallel: " + parallel +
                          "\ntrace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 300, output_tokens: 3}}\n"
                          "scheduler: vllm_v1\n");
    return call_ok({"run", "few.yaml", "--force"}).out;
  }
};

#ifdef KVLAB_SANITIZED
constexpr bool kLimitsMemory = false;
#else
constexpr bool kLimitsMemory = true;
#endif

TEST_F(LargeInputsTest, OutOfMemoryNamesTheKeysAndTheSize) {
  if (!kLimitsMemory) GTEST_SKIP() << "the sanitizer takes memory of its own";
  write("big.yaml", std::string(kSmall) + "scheduler: vllm_v1\nreplicas: 100000\n");
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{200 << 20, 200 << 20};
    ::setrlimit(RLIMIT_DATA, &limit);
    const Called called = call({"run", "big.yaml", "--jobs", "1"});
    write("err.txt", called.err);
    _exit(called.status);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(read("err.txt"), HasSubstr("out of memory: 'replicas' = 100000 with 600 KV blocks each ('memory.num_blocks', given)"));
}

TEST_F(LargeInputsTest, StopsBesideTheSimulation) {
  const std::atomic<bool> stop{true};
  const auto stops = [&](const std::string& text) {
    const Experiment experiment = parse_experiment(text, "a.yaml", {});
    fs::create_directories("runs");
    RunKinds kinds;
    EXPECT_THROW(execute_run(kinds, {experiment, experiment.runs.front(), "runs", {}, [] {}}, {true, &stop, nullptr, {}, false}),
                 Interrupted)
        << text;
  };
  // No request fits, which is an error where the first simulation is not stopped.
  std::string small = kSmall;
  small.replace(small.find("max_model_len: 2048"), 19, "max_model_len: 100");
  stops(small + "scheduler: vllm_v1\nload_frac: 0.5\n");
  const std::string trace = "trace: {file: " KVLAB_SOURCE_DIR "/traces/samples/mooncake_like.jsonl.gz, block_size: 512}\n";
  stops("kind: block_cache_mrc\nblock_caches: lru\ncapacity_blocks: 100\n" + trace);
}

TEST_F(LargeInputsTest, ReplicasThatDoNothingTakeNoMemory) {
  // Conservation checks, which sanitized builds make after every event, look at each block of each replica.
  const std::string replicas = kLimitsMemory ? "4000" : "2", blocks = kLimitsMemory ? "1000000" : "1000";
  write("big.yaml", std::string(kSmall) + "scheduler: vllm_v1\nreplicas: " + replicas + "\n");
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  call_ok({"run", "big.yaml", "--set", "timeline_interval_ms=0", "--set", "memory.num_blocks=" + blocks, "--quiet"});
  ::getrusage(RUSAGE_SELF, &after);
  if (!kLimitsMemory) GTEST_SKIP() << "the sanitizer takes memory of its own";
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 200 << 10);  // KiB
}

TEST_F(LargeInputsTest, RemarksOnRanksAndLinks) {
  const std::string ranks = "makes 4 data-parallel ranks for attention", balance = "'load_balance_method' changes nothing with dp = 1",
                    leaves = "leaves a machine of 8 GPUs";
  const struct {
    const char *model, *hardware, *parallel;
    std::vector<std::string> said, unsaid;
  } cases[] = {
      {"mixtral-8x7b", "h100", "{tp: 8, ep: 8}", {}, {"data-parallel"}},
      {"mixtral-8x7b", "h100", "{tp: 2, dp: 4, ep: 8}", {}, {"data-parallel"}},  // with schedulers of their own
      {"mixtral-8x7b", "h100", "{tp: 2, load_balance_method: total_tokens}", {balance}, {}},
      {"mixtral-8x7b", "h100", "{tp: 2, dp: 2, load_balance_method: total_tokens}", {}, {balance}},
      {"mixtral-8x7b", "h100", "{tp: 2}", {}, {balance}},
      {"llama-3.1-8b",
       "a10",
       "{tp: 4}",
       {" % of step time is all_reduce over 4 ranks by the datasheet of A10", "add them under 'collectives' in "},
       {}},
      {"llama-3.1-8b", "l40s", "{tp: 4}", {"all_reduce over 4 ranks by vllm "}, {"by the datasheet"}},
      {"llama-3.1-70b",
       "b300",
       "{tp: 16}",
       {"all_reduce over 16 ranks " + leaves, "b300.yaml", "'network_bytes_per_s'", "63 GB/s for each GPU"},
       {}},
      {"llama-3.1-70b", "b300", "{tp: 8, pp: 2}", {"p2p over 2 ranks " + leaves}, {}},
      {"qwen3-235b-a22b", "b300", "{tp: 2, dp: 8, ep: 16}", {"all_gather over 8 ranks"}, {}},
      {"llama-3.1-70b", "b300", "{tp: 4, pp: 2}", {}, {"leaves a machine"}},
      {"llama-3.1-70b", "h100", "{tp: 16}", {}, {"leaves a machine"}},  // the card has a rate
      {"mixtral-8x7b", "h100", "{tp: 2, ep: 8}", {ranks}, {}},
  };
  for (const auto& c : cases) {
    const std::string out = output_of(c.model, c.hardware, c.parallel);
    for (const std::string& part : c.said) EXPECT_THAT(out, HasSubstr(part)) << c.parallel;
    for (const std::string& part : c.unsaid) EXPECT_THAT(out, Not(HasSubstr(part))) << c.parallel;
  }
  EXPECT_THAT(read("results/few/manifest.json"), HasSubstr(ranks)) << "of the last run";
}

}  // namespace
}  // namespace kvlab
