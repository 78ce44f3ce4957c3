// Pools of replicas in an experiment: keys, fallbacks, links, systems, tables.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/runs/plan/serving_plan.h"
#include "app/runs/sweep/experiment.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using ::testing::AnyOf;

constexpr const char* kTwoAndTwo = "pools: {prefill: {replicas: 2}, decode: {replicas: 2}}\n";

struct PoolsTest : AppTest {
  // The plan of an experiment with the keys of kSmall and these.
  static ServingPlan plan_of(const std::string& more) {
    const Experiment experiment = parse_experiment(std::string(kSmall) + more, "a.yaml", {});
    Params p = experiment.params(experiment.runs.front());
    return read_serving_plan(p, 1);
  }
  static std::string plan_error(const std::string& more) {
    return error_of([&] { plan_of(more); });
  }
  static void run(const std::string& name, const std::string& more) {
    write(name + ".yaml", std::string(kSmall) + more);
    call_ok({"run", name + ".yaml", "--out", name});
  }
  // The lines of a table without the run's id.
  static std::string without_run(const fs::path& file) {
    std::string all;
    const CsvTable table = read_csv(file);
    for (const auto& row : table.rows)
      for (std::size_t i = 1; i < row.size(); ++i) all += row[i] + (i + 1 < row.size() ? "," : "\n");
    return all;
  }
};

TEST_F(PoolsTest, APoolTakesWhatItLacksFromTheExperiment) {
  const ServingPlan plan = plan_of(
      "scheduler: {sarathi: {budget_tokens: 256}}\npools:\n  prefill: {replicas: 2, parallel: {tp: 2}}\n"
      "  decode: {replicas: 3, hardware: a100-80gb, scheduler: vllm_v1, memory: {num_blocks: 700}}\n");
  ASSERT_EQ(plan.pools.size(), 2U);
  ASSERT_EQ(plan.setup.num_pools(), 2U);
  const PoolPlan &prefill = plan.pools[0], &decode = plan.pools[1];
  EXPECT_EQ(prefill.name, "prefill");
  EXPECT_TRUE(prefill.roles.prefill && !prefill.roles.decode && !decode.roles.prefill && decode.roles.decode);
  const auto sizes = [](const PoolPlan& p) {
    return std::tuple(p.make_scheduler()->step_bounds(2048).tokens, p.memory.num_blocks, p.cost.parallel.gpus());
  };
  EXPECT_EQ(sizes(prefill), std::tuple(256, 600, 2));
  EXPECT_EQ(sizes(decode), std::tuple(2048, 700, 1));  // vllm_v1 on an A100
  EXPECT_THAT(decode.cost.hardware.name, HasSubstr("A100"));
  EXPECT_EQ(prefill.max_model_len, 2048);
  EXPECT_EQ(num_replicas(plan.setup), 5U);
}

TEST_F(PoolsTest, MessagesNameThePlaceThatAValueComesFrom) {
  EXPECT_THAT(plan_error("scheduler: {sarathi: {budget_tokens: 0}}\n" + std::string(kTwoAndTwo)),
              HasSubstr("a.yaml:9:38: 'budget_tokens' = 0"));
  EXPECT_THAT(plan_error("scheduler: vllm_v1\npools: {prefill: {}, decode: {scheduler: {sarathi: {budget_tokens: 0}}}}\n"),
              HasSubstr("a.yaml:10:68: 'budget_tokens' = 0"));
  EXPECT_THAT(plan_error("scheduler: vllm_v1\npools: {prefill: {}, decode: {model: opt-13b}}\n"), HasSubstr("'model' is the experiment's"));
}

TEST_F(PoolsTest, AnExperimentWithoutPoolsHasOne) {
  const ServingPlan plan = plan_of("scheduler: vllm_v1\nreplicas: 3\n");
  ASSERT_EQ(plan.pools.size(), 1U);
  EXPECT_TRUE(plan.setup.pools.empty());
  EXPECT_EQ(std::tuple(plan.setup.num_replicas, plan.setup.memory.num_blocks), std::tuple(3U, 600));
  EXPECT_EQ(num_ranks(plan.setup), 3U);
}

TEST_F(PoolsTest, LinksAreOfWholeReplicas) {
  const auto links = [](const std::string& more) {
    std::vector<std::pair<std::string, double>> all;
    for (const PoolPlan& pool : plan_of("scheduler: vllm_v1\n" + more).pools) all.emplace_back(pool.link_name, pool.link.bytes_per_s);
    return all;
  };
  using Links = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(links("pools: {prefill: {parallel: {tp: 2}}, decode: {hardware: l40s}}\n"), (Links{{"network", 1e11}, {"pcie", 3.15e10}}));
  EXPECT_EQ(links(std::string(kTwoAndTwo) + "transfer: {link: nvlink}\n"), (Links{{"nvlink", 4.5e11}, {"nvlink", 4.5e11}}));
  EXPECT_EQ(links("pools: {prefill: {parallel: {tp: 4}}, decode: {}}\ntransfer: {bytes_per_s: 1e9}\n"),
            (Links{{"given", 4e9}, {"given", 1e9}}));
  EXPECT_EQ(links("pools: {prefill: {}, decode: {hardware: l40s}}\ntransfer: {link: network, bytes_per_s: 2e9}\n"),
            (Links{{"network", 2e9}, {"network", 2e9}}));
  EXPECT_THAT(plan_error("scheduler: vllm_v1\npools: {prefill: {}, decode: {hardware: l40s}}\ntransfer: {link: network}\n"),
              HasSubstr("L40S has no link 'network', only pcie"));
}

TEST_F(PoolsTest, LayoutsAreCountedInPlaces) {
  const auto transfer = [](const std::string& keys) {
    return plan_of("scheduler: vllm_v1\n" + std::string(kTwoAndTwo) + keys).setup.transfer;
  };
  EXPECT_EQ(transfer("").places_per_block, 64);  // keys and values of 32 layers
  EXPECT_EQ(transfer("").layers, 32);
  EXPECT_FALSE(transfer("").is_layerwise);
  EXPECT_EQ(transfer("transfer: {layout: blocks, layerwise: true, merge_blocks: false}\n").places_per_block, 1);
  EXPECT_TRUE(transfer("transfer: {layerwise: true}\n").is_layerwise);
  EXPECT_FALSE(transfer("transfer: {merge_blocks: false}\n").merges_blocks);
}

TEST_F(PoolsTest, OnePoolOfBothIsNoPoolAndRouterIsTheOlderNameOfDispatcher) {
  run("without", "scheduler: vllm_v1\nreplicas: 2\ndispatcher: least_outstanding\n");
  run("with", "scheduler: vllm_v1\npools: {both: {replicas: 2}}\n");
  for (const std::string table : {"/requests.csv", "/timeline.csv", "/summary.csv"})
    EXPECT_EQ(without_run("without" + table), without_run("with" + table)) << table;
  EXPECT_FALSE(fs::exists("without/pools.csv"));
  for (const char* table : {"with/links.csv", "with/transfers.csv"}) EXPECT_TRUE(read_csv(table).rows.empty()) << table;
  run("older", "scheduler: vllm_v1\nreplicas: 2\nrouter: random\n");
  run("newer", "scheduler: vllm_v1\nreplicas: 2\ndispatcher: random\n");
  EXPECT_EQ(without_run("older/requests.csv"), without_run("newer/requests.csv"));
  EXPECT_EQ(call_ok({"list", "routers"}).out, call({"list", "dispatchers"}).out);
}

TEST_F(PoolsTest, TablesAddUp) {
  run("two", "scheduler: vllm_v1\noutput: {perfetto: true}\n" + std::string(kTwoAndTwo));
  const CsvTable requests = read_csv("two/requests.csv"), pools = read_csv("two/pools.csv"), links = read_csv("two/links.csv"),
                 transfers = read_csv("two/transfers.csv"), summary = read_csv("two/summary.csv");
  ASSERT_EQ(pools.rows.size(), 2U);
  EXPECT_EQ(std::tuple(text(pools, "role"), text(pools, "pool", 1)), std::tuple("prefill", "decode"));
  EXPECT_EQ(sum(pools, "gpus"), 4);
  EXPECT_EQ(sum(pools, "output_tokens"), sum(requests, "output_tokens"));
  EXPECT_EQ(text(pools, "output_tokens"), "60");  // the first token of each
  EXPECT_EQ(sum(pools, "steps"), number(summary, "steps"));
  EXPECT_NEAR(sum(pools, "energy_j"), number(summary, "energy_j"), 1e-4);
  std::size_t going_on = 0;
  for (const auto& row : requests.rows) {
    const bool has_more = std::stoi(row[requests.at("output_tokens")]) > 1;
    going_on += has_more ? 1 : 0;
    EXPECT_EQ(row[requests.at("state")], "completed");
    EXPECT_EQ(std::stoi(row[requests.at("replica")]) >= 2, has_more) << row[requests.at("request")];
  }
  EXPECT_EQ(transfers.rows.size(), going_on);
  constexpr double kBlockBytes = 16 * 131072;  // of Llama-3.1-8B in 16 bit
  for (const auto& row : transfers.rows) {
    EXPECT_EQ(row[transfers.at("tokens")], "300");
    EXPECT_EQ(std::stod(row[transfers.at("bytes")]), 19 * kBlockBytes);
    EXPECT_EQ(std::stoll(row[transfers.at("calls")]) % 64, 0);
    EXPECT_GE(std::stoll(row[transfers.at("asked_ns")]), std::stoll(row[transfers.at("ready_ns")]));
    EXPECT_GT(std::stoll(row[transfers.at("end_ns")]), std::stoll(row[transfers.at("asked_ns")]));
  }
  EXPECT_EQ(sum(links, "transfers"), 2.0 * static_cast<double>(going_on));  // out of one replica and into another
  EXPECT_EQ(sum(links, "bytes"), 2 * sum(transfers, "bytes"));
  for (const auto& row : links.rows) EXPECT_EQ(row[links.at("direction")] == "out", row[links.at("pool")] == "prefill");
  const std::string trace = read("two/trace.json");
  EXPECT_TRUE(nlohmann::json::accept(trace));
  EXPECT_THAT(trace, has_all({"KV from 0", "ready to leave", "KV arrived of"}));
}

TEST_F(PoolsTest, TheStoreIsOfPoolsThatPrefill) {
  const auto blocks = [](const std::string& more) {
    std::vector<std::int64_t> all;
    for (const PoolSetup& pool : plan_of("scheduler: vllm_v1\n" + std::string(kTwoAndTwo) + more).setup.pools)
      all.push_back(pool.store_blocks);
    return all;
  };
  using Blocks = std::vector<std::int64_t>;
  EXPECT_EQ(blocks(""), (Blocks{0, 0}));
  EXPECT_EQ(blocks("store:\n"), (Blocks{2048, 0}));  // 128 GiB in blocks of 512 tokens, 64 MiB
  EXPECT_EQ(blocks("store: {bytes_per_gpu: 1000000000, block_tokens: 64}\n"), (Blocks{119, 0}));
  const ServingPlan mooncake = plan_of("scheduler: vllm_v1\nsystem: mooncake\n");
  EXPECT_EQ(std::tuple(mooncake.setup.store.block_tokens, mooncake.setup.pools[0].store_blocks), std::tuple(512, 2048));
  EXPECT_FALSE(plan_of("scheduler: vllm_v1\nsystem: mooncake\nprefix_caching: false\n").setup.store.is_on());
  run("kept", "scheduler: vllm_v1\nstore: {block_tokens: 64}\n" + std::string(kTwoAndTwo));
  const CsvTable stores = read_csv("kept/stores.csv");
  ASSERT_EQ(stores.rows.size(), 2U);
  EXPECT_EQ(std::tuple(text(stores, "pool", 1), text(stores, "block_bytes", 1)), std::tuple("prefill", std::to_string(64 * 131072)));
  EXPECT_FALSE(fs::exists("two/stores.csv"));
}

TEST_F(PoolsTest, TheManifestSaysWhatEachPoolRestsOn) {
  run("two", "scheduler: vllm_v1\nsystem: {" + std::string(KVLAB_SOURCE_DIR) +
                 "/policies/systems/flowkv.yaml: {dispatcher: round_robin}}\n" + "pools: {prefill: {}, decode: {hardware: a100-80gb}}\n");
  const auto manifest = nlohmann::json::parse(read(run_folder("two") / "manifest.json"));
  ASSERT_EQ(manifest["pools"].size(), 2U);
  EXPECT_EQ(std::tuple(manifest["system"], manifest["pools"][0]["link"], manifest["pools"][0]["link_bytes_per_s"]),
            std::tuple("flowkv", "network", 5e10));
  EXPECT_EQ(std::tuple(manifest["pools"][1]["role"], manifest["pools"][1]["hardware"], manifest["pools"][0]["profile"]["name"]),
            std::tuple("decode", "A100 SXM 80GB", "roofline"));
  EXPECT_TRUE(manifest["pools"][0]["step_time_by_part"].contains("attention"));
  EXPECT_FALSE(manifest.contains("hardware"));
  EXPECT_THAT(read("two/summary.csv"), HasSubstr("8192/2048"));  // tokens per step of vllm_v1 on either card
}

TEST_F(PoolsTest, FastForwardChangesNothing) {
  run("fast", "scheduler: vllm_v1\n" + std::string(kTwoAndTwo));
  call_ok({"run", "fast.yaml", "--out", "slow", "--fast-forward=off"});
  for (const std::string table : {"/requests.csv", "/transfers.csv", "/links.csv", "/pools.csv", "/summary.csv", "/timeline.csv"})
    EXPECT_EQ(without_run("fast" + table), without_run("slow" + table)) << table;
}

TEST_F(PoolsTest, ASystemFillsInWhatTheExperimentDoesNotSay) {
  write("mine.yaml",
        "summary: s\npaper: p\ndispatcher: round_robin\ntransfer: {layerwise: true, layout: blocks}\nscheduler: {sarathi: {budget_tokens: "
        "64}}\n"
        "pools: {prefill: {scheduler: {sarathi: {budget_tokens: 128}}}, decode: {}}\n");
  const auto tokens = [](const std::string& more) {
    std::vector<std::int32_t> all;
    for (const PoolPlan& pool : plan_of(more).pools) all.push_back(pool.make_scheduler()->step_bounds(2048).tokens);
    return all;
  };
  using Tokens = std::vector<std::int32_t>;
  EXPECT_EQ(tokens("system: mine.yaml\n"), (Tokens{128, 64}));
  EXPECT_EQ(tokens("system: {mine.yaml: {scheduler: {sarathi: {budget_tokens: 32}}}}\n"), (Tokens{32, 32}));
  EXPECT_EQ(tokens("system: {mine.yaml: {pools: {decode: {scheduler: {sarathi: {budget_tokens: 32}}}}}}\n"), (Tokens{128, 32}));
  EXPECT_EQ(tokens("system: mine.yaml\nscheduler: {sarathi: {budget_tokens: 16}}\n"), (Tokens{16, 16}));
  EXPECT_EQ(tokens("system: mine.yaml\nscheduler: {sarathi: {budget_tokens: 16}}\npools: {prefill: {}, fast: {role: decode, scheduler: "
                   "{sarathi: {budget_tokens: 8}}}}\n"),
            (Tokens{16, 8}));
  EXPECT_TRUE(plan_of("system: mine.yaml\n").setup.transfer.is_layerwise);
  EXPECT_EQ(plan_of("system: mine.yaml\n").setup.transfer.places_per_block, 1);
  EXPECT_FALSE(plan_of("system: mine.yaml\ntransfer: {link: nvlink}\n").setup.transfer.is_layerwise);  // taken whole
  EXPECT_FALSE(plan_of("system: mine.yaml\n").setup.make_dispatcher()->reads_load());                  // round_robin
  EXPECT_TRUE(plan_of("system: mine.yaml\ndispatcher: least_outstanding\n").setup.make_dispatcher()->reads_load());
  EXPECT_THAT(plan_error("system: mine.yaml\nreplicas: 2\n"), HasSubstr("'replicas' is of each pool"));
  write("mine.yaml", "summary: s\npaper: p\nkv_policy: fp8\n");
  EXPECT_THAT(plan_error("system: mine.yaml\nscheduler: vllm_v1\n"), HasSubstr("unknown key 'kv_policy' in system 'mine'"));
}

TEST_F(PoolsTest, ShippedSystemsAreReadAndDescribed) {
  const std::vector<std::string> names = system_names();
  EXPECT_EQ(names, (std::vector<std::string>{"distserve", "epd", "flowkv", "mooncake", "splitwise", "tetriinfer"}));
  const std::string listed = call({"list", "systems"}).out;
  for (const std::string& name : names) {
    const std::string images = name == "epd" ? "images: {tokens_each: 576, encoder: clip-vit-l-14-336}\n" : "";
    const ServingPlan plan = plan_of("system: " + name + "\n" + images);
    EXPECT_EQ(plan.system, name);
    EXPECT_EQ(plan.pools.size(), 2U) << name;
    EXPECT_THAT(listed, HasSubstr(name));
    EXPECT_THAT(call({"describe", name}).out, AnyOf(HasSubstr("dispatcher: " + name), HasSubstr("dispatcher: {" + name + ":")));
  }
}

TEST_F(PoolsTest, PoolsAreAnAxis) {
  const Experiment experiment = parse_experiment(
      "pools: [{prefill: {replicas: [1, 2]}, decode: {replicas: 3}}, {both: {replicas: 4}}, {prefill: {}, decode: }]\n", "a.yaml", {});
  std::vector<std::string> labels;
  for (const RunSpec& run : experiment.runs) labels.push_back(run.labels.at(0));
  EXPECT_EQ(labels, (std::vector<std::string>{"prefill decode 3", "prefill decode 3", "both 4", "prefill 1 decode 1"}));
}

// The files of docs/write-a-system.md, as they are printed there.

using SystemPage = AppTest;

TEST_F(SystemPage, ItsExperimentRunsAndItsClaimIsMeasured) {
  const std::string page = read(KVLAB_SOURCE_DIR "/docs/write-a-system.md"), opening = "```yaml ";  // and the file's path
  for (std::size_t at = page.find(opening); at != std::string::npos; at = page.find(opening, at + 1)) {
    const std::size_t path = at + opening.size(), begin = page.find('\n', path) + 1;
    const fs::path file = page.substr(path, begin - 1 - path);
    write(file, page.substr(begin, page.find("```", begin) - begin));
  }
  call_ok({"run", "experiments/short_prompts.yaml", "--out", "out", "--quiet"});
  EXPECT_EQ(num_runs("out"), 2U);
  EXPECT_THAT(read("out/summary.csv"), HasSubstr("policies/systems/short_prompts.yaml"));
  const Called called = call_ok({"reproduce", "claims/short_prompts_ttft.yaml", "--json", "--quiet"});
  const auto list = nlohmann::json::parse(called.out);
  EXPECT_EQ(std::tuple(list[0]["name"], list[0]["verdict"]), std::tuple("short_prompts_ttft", "reproduced"));
}

// Orders, predictors and optional columns in experiments: results by class and client, and errors that say what to do.

// The service of one class or client.
std::string attainment(const CsvTable& service, const std::string& group, const std::string& name) {
  for (const auto& row : service.rows)
    if (row[service.at("group")] == group && row[service.at("name")] == name) return row[service.at("slo_attainment_frac")];
  return "no such row";
}

struct OrderRunTest : AppTest {
  static Called run(const std::string& more, const std::string& generate = "clients: {num: 3}") {
    std::string text = kSmall;
    text.replace(text.find("requests: 60"), 12, "requests: 60, " + generate);
    write("e.yaml", text + more);
    return call({"run", "e.yaml", "--out", "out", "--force"});
  }
};

TEST_F(OrderRunTest, ServiceByClassAndClient) {
  const Called called = run("scheduler: vllm_v1\norder: vtc\n",
                            "clients: {num: 2}, classes: {chat: {share_frac: 0.5, ttft_slo_ms: 0.001}, batch: {share_frac: 0.5}}");
  ASSERT_EQ(called.status, 0) << called.err;
  const CsvTable table = read_csv("out/service.csv");
  ASSERT_EQ(table.rows.size(), 5U);
  int requests = 0;
  for (const auto& row : table.rows)
    if (row[table.at("group")] == "client") requests += std::stoi(row[table.at("requests")]);
  EXPECT_EQ(requests, 60);
  const CsvTable groups = read_csv("out/request_groups.csv");
  EXPECT_EQ(groups.columns, (std::vector<std::string>{"run", "request", "client", "class"}));
  ASSERT_EQ(groups.rows.size(), 60U);
  for (const auto& row : table.rows) {
    const std::string group = row[table.at("group")];
    if (group == "clients") continue;
    const auto is_its = [&](const auto& request) { return request[groups.at(group)] == row[table.at("name")]; };
    EXPECT_EQ(std::to_string(std::count_if(groups.rows.begin(), groups.rows.end(), is_its)), row[table.at("requests")])
        << row[table.at("name")];
  }
  EXPECT_EQ(std::stod(attainment(table, "class", "chat")), 0) << "no request is that fast";
  EXPECT_GT(std::stod(attainment(table, "class", "batch")), 0.5) << "held to the run's targets";
}

TEST_F(OrderRunTest, TargetsByClassAndClient) {
  const std::string classes = "clients: {num: 2}, classes: {chat: {share_frac: 0.5}, batch: {share_frac: 0.5}}";
  ASSERT_EQ(run("scheduler: vllm_v1\n", classes).status, 0);
  const auto with = [&](const std::string& slo) { return call({"run", "e.yaml", "--out", "out", "--force", "--set", "slo=" + slo}); };
  ASSERT_EQ(with("{classes: {chat: {ttft_ms: 0.001}, batch: {tbt_ms: {p99: 1000}}}}").status, 0);
  CsvTable service = read_csv("out/service.csv");
  EXPECT_EQ(attainment(service, "class", "chat"), "0.000000");
  EXPECT_EQ(attainment(service, "class", "batch"), "1.000000");
  const double all = number(read_csv("out/summary.csv"), "slo_attainment_frac");
  EXPECT_GT(all, 0.2);
  EXPECT_LT(all, 0.8);
  ASSERT_EQ(with("{ttft_ms: 0.001, classes: {batch: {}}, clients: {1: {e2e_ms: 0.001}}}").status, 0);
  service = read_csv("out/service.csv");
  EXPECT_EQ(attainment(service, "class", "chat"), "0.000000");
  EXPECT_EQ(std::stod(attainment(service, "client", "0")), 0) << "its chats are late, its batch is not judged";
  EXPECT_EQ(std::stod(attainment(service, "client", "1")), 0);
  EXPECT_EQ(attainment(service, "class", "batch"), "0.000000") << "those of client 1";
}

TEST_F(OrderRunTest, QualityOfExperienceIsPerfectWhereTextComesFasterThanItIsRead) {
  const Called called = run("scheduler: vllm_v1\nqoe: {}\n");
  ASSERT_EQ(called.status, 0) << called.err;
  const auto mean = [] {
    const CsvTable summary = read_csv("out/summary.csv"), service = read_csv("out/service.csv");
    EXPECT_EQ(text(service, "group"), "client");
    EXPECT_GT(number(service, "qoe_mean"), 0);
    EXPECT_LE(number(summary, "qoe_min"), number(summary, "qoe_p10"));
    return number(summary, "qoe_mean");
  };
  EXPECT_EQ(mean(), 1);
  call_ok({"run", "e.yaml", "--out", "out", "--set", "qoe={ttft_ms: 1, tokens_per_s: 10000}"});
  EXPECT_LT(mean(), 0.6) << "no engine is that fast";
  ASSERT_EQ(call({"run", "e.yaml", "--out", "out2", "--set", "qoe={tokens_per_s: 0}"}).status, 2);
}

TEST_F(OrderRunTest, TargetsOfTheTraceCountInTheSummary) {
  write("t.csv", "arrival_ns,prompt_tokens,output_tokens,tbt_slo_ms\n0,100,20,0.000001\n0,100,20,1000\n0,100,20,\n");
  write("e.yaml",
        "name: small\nmodel: llama-3.1-8b\nhardware: h100\ntrace: {file: t.csv}\nmemory: {num_blocks: 600}\nscheduler: vllm_v1\n");
  EXPECT_EQ(text(summary_after({"e.yaml"}), "slo_attainment_frac"), "0.500000") << "the third has no target";
  EXPECT_EQ(text(summary_after({"e.yaml", "--set", "slo={ttft_ms: 100000}"}), "slo_attainment_frac"), "0.666667");
}

TEST_F(OrderRunTest, TargetsOfNoClassOfAFileAreRefused) {
  write("t.csv", "arrival_ns,prompt_tokens,output_tokens,client,class\n0,100,20,ann,chat\n0,100,20,7,code\n");
  write("e.yaml",
        "name: small\nmodel: llama-3.1-8b\nhardware: h100\ntrace: {file: t.csv}\nmemory: {num_blocks: 600}\nscheduler: vllm_v1\n"
        "slo: {classes: {cod: {ttft_ms: 500}}}\n");
  EXPECT_EQ(call({"run", "e.yaml", "--out", "out"}).err,
            "kvlab: e.yaml:7:22: the trace has no request of class 'cod'; its classes are chat, code; did you mean 'code'?\n");
  const auto clients = [&](const std::string& name) {
    return call({"run", "e.yaml", "--out", "out", "--set", "slo={clients: {" + name + ": {ttft_ms: 500}}}"});
  };
  EXPECT_EQ(clients("ann").status, 0) << clients("ann").err;
  EXPECT_EQ(clients("7").status, 0);
  EXPECT_THAT(clients("8").err, HasSubstr("the trace has no request of client '8'; its clients are 7, "));
}

TEST_F(OrderRunTest, NoTableWithoutTheColumns) {
  write("e.yaml", std::string(kSmall) + "scheduler: vllm_v1\norder: {srpt: {preemptive: false}}\n");
  call_ok({"run", "e.yaml", "--out", "out"});
  for (const char* file : {"out/service.csv", "out/request_groups.csv"}) EXPECT_FALSE(fs::exists(file)) << file;
}

TEST_F(OrderRunTest, ErrorsSayWhatToDo) {
  const Called column = run("scheduler: vllm_v1\norder: priority\n");
  EXPECT_EQ(column.status, 2);
  EXPECT_THAT(column.err, has_all({"e.yaml:10", "the column 'priority', which request 0"}));
  const Called overtaking = run("scheduler: orca\norder: srpt\n");
  EXPECT_EQ(overtaking.status, 2);
  EXPECT_THAT(overtaking.err, HasSubstr("choose 'scheduler: vllm_v1'"));
  EXPECT_THAT(run("scheduler: vllm_v1\norder: spt\n").err, HasSubstr("did you mean"));
  write("p.csv", "request,predicted_output\n0,5\n");
  const Called no_row = run("scheduler: vllm_v1\norder: sjf\npredictor: {recorded: {file: p.csv}}\n");
  EXPECT_THAT((no_row.err + no_row.out), has_all({"p.csv: no row for request 1", "e.yaml:11:"})) << no_row.err << no_row.out;
}

TEST_F(OrderRunTest, WeightsNameClientsOfTheTrace) {
  EXPECT_EQ(run("scheduler: vllm_v1\norder: {vtc: {weights: {0: 2, 2: 0.5}}}\n").status, 0);
  const Called unknown = run("scheduler: vllm_v1\norder: {vtc: {weights: {bob: 2}}}\n");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, has_all({"names the client 'bob', which no request of the trace has", "hash): 0, 1, 2"}));
}

TEST_F(OrderRunTest, S3UsesThePredictor) {
  const Called called = run("scheduler: s3\npredictor: {bucket: {max_output_tokens: 512}}\n");
  EXPECT_EQ(called.status, 0) << called.err;
  EXPECT_THAT(called.out + called.err, Not(HasSubstr("changes nothing")));
}

}  // namespace
}  // namespace kvlab
