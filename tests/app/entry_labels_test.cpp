// List entries of one policy: ids in results tell them apart by place, tables by the parameters in which they differ.
#include "app/results/entry_labels.h"

#include "app/results/view.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

struct EntryLabelsTest : AppTest {
  // A results folder whose runs a, b, ... have these settings, and the view of them with their labels on the axis `scheduler`.
  static View folder_with(const fs::path& folder, const std::vector<std::pair<std::string, std::string>>& runs) {
    View view{{"scheduler"}, {}};
    for (const auto& [label, resolved] : runs) {
      const std::string id(1, static_cast<char>('a' + view.rows.size()));
      write(folder / "runs" / id / "resolved.yaml", resolved);
      view.rows.push_back({id, folder / "runs" / id, {label}});
    }
    return view;
  }
};

// By hand: budget_tokens differs (the first run has its default), max_num_seqs is alike, and tiers.tail has neither a value nor a default
// in the first run.
TEST_F(EntryLabelsTest, ParametersThatDifferWithDefaults) {
  const EntryLabels labels(folder_with(
      "r", {{"sarathi#1", "scheduler: {sarathi: {max_num_seqs: 64}}\n\n# defaults in force:\n#   scheduler.sarathi.budget_tokens: 512\n"},
            {"sarathi#2", "scheduler: {sarathi: {max_num_seqs: 64, budget_tokens: 2048, tiers: {tail: 3}}}\n"},
            {"orca", "scheduler: orca\n"}}));
  EXPECT_EQ(std::tuple(labels.shown("scheduler", "sarathi#1"), labels.shown("scheduler", "sarathi#2"), labels.shown("scheduler", "orca")),
            std::tuple("sarathi {budget_tokens: 512}", "sarathi {budget_tokens: 2048, tail: 3}", "orca"));
  EXPECT_EQ(labels.shown("order", "sarathi#1"), "sarathi#1") << "of another axis";
  EXPECT_EQ(labels.json().dump(), R"({"scheduler":{"sarathi#1":{"budget_tokens":"512"},"sarathi#2":{"budget_tokens":"2048","tail":"3"}}})");
  write("r/manifest.json", R"({"entries": )" + labels.json().dump() + "}");
  EXPECT_EQ(EntryLabels::of_folder("r").json(), labels.json());
}

TEST_F(EntryLabelsTest, LabelsWithoutOwnParametersStay) {
  const EntryLabels same(folder_with("r", {{"orca#1", "scheduler: orca\n"}, {"orca#2", "scheduler: {orca: {}}\n"}}));
  EXPECT_EQ(same.json().dump(), R"({"scheduler":{"orca#1":{},"orca#2":{}}})");
  EXPECT_EQ(same.shown("scheduler", "orca#1"), "orca#1");
  // Keys that end alike are written whole.
  const EntryLabels alike(
      folder_with("s", {{"x#1", "scheduler: {x: {a: {n: 1}, b: {n: 2}}}\n"}, {"x#2", "scheduler: {x: {a: {n: 3}, b: {n: 4}}}\n"}}));
  EXPECT_EQ(alike.shown("scheduler", "x#2"), "x {x.a.n: 3, x.b.n: 4}");
}

// Defaults that follow another axis: n is 8 on one GPU and 2 on the other where the entry does not set it.
TEST_F(EntryLabelsTest, DefaultsThatVaryWithinALabel) {
  const std::string defaults = "\n# defaults in force:\n#   scheduler.x.n: ";
  const std::string plain = "hardware: H\nscheduler: x\nseed: 1\n", set = "scheduler: {x: {n: 4}}\n", m = "scheduler: {x: {m: 3}}\n";
  const EntryLabels labels(folder_with("r", {{"x#1", plain + defaults + "8\n#   scheduler.x.m: 1\n"},
                                             {"x#1", plain + defaults + "2\n#   scheduler.x.m: 1\n"},
                                             {"x#2", set + "\n# defaults in force:\n#   scheduler.x.m: 1\n"},
                                             {"x#3", m + defaults + "8\n"},
                                             {"x#3", m + defaults + "2\n"}}));
  EXPECT_EQ(std::tuple(labels.shown("scheduler", "x#1"), labels.shown("scheduler", "x#2"), labels.shown("scheduler", "x#3")),
            std::tuple("x {m: 1}", "x {n: 4, m: 1}", "x {m: 3}"));
  EXPECT_TRUE(labels.ambiguous().empty());
  const EntryLabels none(folder_with("s", {{"x#1", plain + defaults + "8\n"}, {"x#1", plain + defaults + "2\n"}, {"x#2", set}}));
  EXPECT_EQ(none.shown("scheduler", "x#1"), "x#1") << "no key is left";
  EXPECT_EQ(none.shown("scheduler", "x#2"), "x {n: 4}");
}

// Runs with equal lines are parsed once; an alias may name a node outside these lines.
TEST_F(EntryLabelsTest, AliasesBlocksAndSettingsThatAreGone) {
  const std::string uses = "scheduler:\n  x:\n    n: *n\n";
  const EntryLabels labels(folder_with("r", {{"x#1", "search: &n 1\n" + uses},
                                             {"x#2", "search: &n 2\n" + uses},
                                             {"x#3", "scheduler:\n  x:\n    n: 3\nrouter:\n  x:\n    n: 5\n"}}));
  EXPECT_EQ(labels.json().dump(), R"({"scheduler":{"x#1":{"n":"1"},"x#2":{"n":"2"},"x#3":{"n":"3"}}})");
  const EntryLabels gone(folder_with("s", {{"x#1", "scheduler: {x: {n: 1}}\n"}, {"x#2", "scheduler: {x: {n: 2}}\n"}, {"x#2", ""}}));
  EXPECT_EQ(std::tuple(gone.shown("scheduler", "x#1"), gone.shown("scheduler", "x#2")), std::tuple("x {n: 1}", "x#2"));
  EXPECT_FALSE(gone.is_ambiguous("scheduler", "x#2"));
}

// Two folders of one table use one label for other entries: the table keeps the label.
TEST_F(EntryLabelsTest, LabelsOfSeveralFolders) {
  View view = folder_with("r", {{"x#1", "scheduler: {x: {n: 1}}\n"}, {"x#2", "scheduler: {x: {n: 2}}\n"}});
  const View other = folder_with("s", {{"x#1", "scheduler: {x: {n: 1}}\n"}, {"x#2", "scheduler: {x: {n: 9}}\n"}});
  view.rows.insert(view.rows.end(), other.rows.begin(), other.rows.end());
  const EntryLabels labels(view);
  EXPECT_EQ(std::tuple(labels.shown("scheduler", "x#1"), labels.shown("scheduler", "x#2")), std::tuple("x {n: 1}", "x#2"));
  EXPECT_FALSE(labels.is_ambiguous("scheduler", "x#1"));
  EXPECT_TRUE(labels.is_ambiguous("scheduler", "x#2"));
  EXPECT_EQ(labels.json().dump(), R"({"scheduler":{"x#1":{"n":"1"},"x#2":null}})");
  write("r/manifest.json", R"({"entries": )" + labels.json().dump() + "}");
  EXPECT_TRUE(EntryLabels::of_folder("r").is_ambiguous("scheduler", "x#2"));
}

// An axis below the entry has a column: its values make the label neither ambiguous nor longer.
TEST_F(EntryLabelsTest, AxesOfAnEntry) {
  View view = folder_with("r", {{"x#1", "scheduler: {x: {t: {a: {n: 1}}, m: 1}}\n"},
                                {"x#1", "scheduler: {x: {t: {a: {n: 2}}, m: 1}}\n"},
                                {"x#2", "scheduler: {x: {m: 2}}\n"}});
  view.axes.emplace_back("scheduler.x.t");
  for (std::size_t i = 0; i < 3; ++i) view.rows[i].labels.emplace_back(std::vector<std::string>{"a#1", "a#2", ""}[i]);
  const EntryLabels labels(view);
  EXPECT_EQ(labels.shown("scheduler", "x#1"), "x {m: 1}");
  EXPECT_FALSE(labels.is_ambiguous("scheduler", "x#1"));
}

TEST_F(EntryLabelsTest, TablesShowThemAndResultsKeepIds) {
  write("two.yaml",
        std::string(kSmall) + "scheduler:\n  - {sarathi: {budget_tokens: [256, 1024]}}\n  - sarathi\n  - {sarathi: {max_num_seqs: 4}}\n");
  const Called ran = call_ok({"run", "two.yaml", "--out", "results/two"});
  const std::size_t begin = ran.out.find("run   ");
  const std::string table = ran.out.substr(begin, ran.out.find("\nalso in") - begin);
  EXPECT_THAT(table, ::testing::ContainsRegex("sarathi \\{max_num_seqs: 128\\} +256 "));
  EXPECT_THAT(table, ::testing::ContainsRegex("sarathi \\{max_num_seqs: 128\\} +1024 "));
  EXPECT_THAT(table, has_all({"sarathi {budget_tokens: 512, max_num_seqs: 128} ", "sarathi {budget_tokens: 512, max_num_seqs: 4} "}));
  EXPECT_THAT(table, Not(HasSubstr("#")));
  EXPECT_EQ(read_csv("results/two/summary.csv").rows.at(3).at(1), "sarathi#3");
  EXPECT_THAT(call({"results", "two"}).out, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 4} "));
  const std::vector<std::string> pivot = {"pivot",    "results/two", "--rows",  "scheduler",
                                          "--metric", "requests",    "--where", "scheduler=sarathi#3"};
  EXPECT_THAT(call(pivot).out, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 4}"));
  EXPECT_EQ(call(pivot, {"--csv"}).out, "scheduler,requests\nsarathi#3,60\n");
  call_ok({"run", "two.yaml", "--out", "results/again", "--quiet"});
  call_ok({"results", "join", "both", "two", "again"});
  EXPECT_THAT(call({"results", "both"}).out, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 4} "));
}

// vLLM's budget of tokens is 8192 on an H100 and 2048 on an L40S where the entry does not set it.
TEST_F(EntryLabelsTest, DefaultsFollowTheHardware) {
  write("lab.yaml", kSmall + std::string("scheduler: [vllm_v1, {vllm_v1: {budget_tokens: 4096}}]\n"));
  call_ok({"run", "lab.yaml", "--out", "results/lab", "--set", "hardware=[l40s, h100]"});
  ASSERT_NE(read(run_folder("results/lab", 0) / "resolved.yaml").find("scheduler.vllm_v1.budget_tokens: 2048\n"), std::string::npos);
  ASSERT_NE(read(run_folder("results/lab", 2) / "resolved.yaml").find("scheduler.vllm_v1.budget_tokens: 8192\n"), std::string::npos);
  const std::string listed = call({"results", "lab"}).out;
  EXPECT_THAT(listed, Not(HasSubstr("2048")));
  EXPECT_THAT(listed, ::testing::ContainsRegex("vllm_v1#1 .*vllm_v1 \\{budget_tokens: 4096\\} .*vllm_v1#1 "));
}

// The second entry differs between the folders: its rows are apart in a pivot, and the join has a line on it.
TEST_F(EntryLabelsTest, JoinedFoldersWithOtherEntries) {
  for (const auto& [name, budget] : {std::pair{"a", "512"}, {"b", "4096"}}) {
    const std::string file = name + std::string(".yaml");
    write(file, kSmall + std::string("scheduler: [vllm_v1, {vllm_v1: {budget_tokens: ") + budget + "}}]\n");
    call_ok({"run", file, "--out", std::string("results/") + name, "--quiet"});
  }
  EXPECT_THAT(call({"results", "join", "both", "a", "b"}).out,
              HasSubstr("scheduler vllm_v1#2: names entries with other settings in each folder"));
  const std::string listed = call({"results", "both"}).out;
  EXPECT_THAT(listed, Not(HasSubstr("budget_tokens: 512}")));
  EXPECT_THAT(listed, HasSubstr("vllm_v1#2 "));
  const std::vector<std::string> pivot = {"pivot", "results/both", "--rows", "scheduler", "--columns", "results", "--metric", "requests"};
  const std::string table = call(pivot).out;
  EXPECT_THAT(table, ::testing::ContainsRegex("vllm_v1#2 of results/a +60 *\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("vllm_v1#2 of results/b +60\n"));
  EXPECT_EQ(call(pivot, {"--csv", "--where", "scheduler=vllm_v1#2"}).out,
            "scheduler,results/a,results/b\nvllm_v1#2 of results/a,60,\nvllm_v1#2 of results/b,,60\n");
}

// One recipe with other parameters of its parts: `recipe` alone does not tell the rows apart.
TEST_F(EntryLabelsTest, RecipesOfAReplay) {
  write("replay.yaml", "host: replay\nsamples: {niah: {file: " KVLAB_SOURCE_DIR
                       "/traces/samples/probe_niah.safetensors}}\nkv_policy:\n"
                       "  - {recipe: snapkv, budget_tokens: 128, scorer: {window_attention: {window_tokens: 16}}}\n"
                       "  - {recipe: snapkv, budget_tokens: 128, scorer: {window_attention: {window_tokens: 64}}}\n");
  EXPECT_THAT(call_ok({"run", "replay.yaml"}).out, has_all({"snapkv  snapkv 128 scorer window_attention {window_tokens: 16} ",
                                                            "snapkv  snapkv 128 scorer window_attention {window_tokens: 64} "}));
}

// Tables of runs joined into one. The tables are written by hand.

struct ViewTest : SmallTest {
  // Joins runs "0", "1", ..., each with one of these tables; returns requests.csv.
  static std::string joined(const std::vector<std::string>& tables) {
    ResultsFolder folder("out", load_experiment("small.yaml", {}), ResultsFolder::Joins::kNo);
    View view;
    for (const std::string& table : tables) {
      const std::string id = std::to_string(view.rows.size());
      view.rows.push_back({id, folder.runs() / id, {}});
      write(view.rows.back().run / "summary.csv", "run,seed\n" + id + ",1\n");
      write(view.rows.back().run / "requests.csv", table);
    }
    join_runs(folder, view);
    return read("out/requests.csv");
  }
};

TEST_F(ViewTest, MissingLastColumnsAreEmpty) {
  EXPECT_EQ(joined({"run,a\n0,1\n0,2\n", "run,a,b,c\n1,3,4,5\n", "run,a,b\n2,6,7\n", ""}), "run,a,b,c\n0,1,,\n0,2,,\n1,3,4,5\n2,6,7,\n");
  // The empty fields are at the end of a row, which is not the end of each of its lines.
  const std::string rows = "0,\"p\nq\"\"\n\"\"\n,r\",s";
  EXPECT_EQ(joined({"run,a,b\n" + rows + "\n0,\"\"\"\",t\n", "run,a,b,c\n1,\"x\ny\",2,3\n"}),
            "run,a,b,c\n" + rows + ",\n0,\"\"\"\",t,\n1,\"x\ny\",2,3\n");
}

TEST_F(ViewTest, OtherColumnsAreRefused) {
  for (const std::string other : {"run,b\n1,1\n", "run,ab,c\n1,1,1\n", "run,b,c,d\n1,1,1,1\n"})
    EXPECT_THAT(error_of([&] {
                  joined({"run,a,c\n0,1,1\n", other});
                }),
                HasSubstr("requests.csv: has other columns than the runs before it"))
        << other;
}

struct PivotTest : AppTest {
  PivotTest() {
    write("r/summary.csv",
          "run,scheduler,trace.arrival.poisson.rate_per_s,seed,goodput_per_s,binding_limit\n"
          "a,orca,1,1,0.5,ttft\nb,orca,1,2,0.7,ttft\nc,orca,2,1,0.25,ttft\nd,orca,2,2,0.25,tpot\n"
          "e,sarathi,1,1,1,\nf,sarathi,1,2,1,\n");
  }
};

// Means 0.6 and 0.25: the first has an interval of 12.706 x 0.1, the second has none, since its seeds agree.
TEST_F(PivotTest, MeansOverSeedsByHand) {
  EXPECT_EQ(call_ok({"pivot", "r", "--rows", "scheduler", "--columns", "rate_per_s", "--metric", "goodput_per_s"}).out,
            "goodput_per_s over trace.arrival.poisson.rate_per_s; mean over n = 2 seeds, +- half of the 95 % t-interval\n"
            "scheduler  1                   2\n"
            "orca       0.600 +- 1.271  0.250\n"
            "sarathi    1\n");
}

TEST_F(PivotTest, CsvOfNumbersAndTexts) {
  EXPECT_EQ(call({"pivot", "r", "--rows", "rate_per_s", "--columns", "scheduler", "--metric", "goodput_per_s", "--csv"}).out,
            "trace.arrival.poisson.rate_per_s,orca,sarathi\n1,0.6,1\n2,0.25,\n");
  // Also by the heading of the printed table, 'binding'.
  for (const char* metric : {"binding_limit", "binding"})
    EXPECT_EQ(call({"pivot", "r", "--rows", "rate_per_s", "--metric", metric, "--where", "scheduler=orca", "--csv"}).out,
              "trace.arrival.poisson.rate_per_s,binding_limit\n1,ttft\n2,ttft/tpot\n");
}

TEST_F(PivotTest, AnAxisIsNeverAveragedOver) {
  EXPECT_THAT(error_of_call({"pivot", "r", "--rows", "scheduler", "--metric", "goodput_per_s"}),
              HasSubstr("rate_per_s varies within a cell (1, 2): make it --rows or --columns, or choose one by --where"));
  EXPECT_EQ(call({"pivot", "r", "--rows", "scheduler", "--metric", "goodput_per_s", "--where", "rate_per_s=2"}).status, 0);
}

TEST_F(PivotTest, NamesWhatIsWrong) {
  const auto error = [](const std::vector<std::string>& more) { return call({"pivot", "r"}, more).err; };
  EXPECT_THAT(error({"--rows", "schedular", "--metric", "goodput_per_s"}), HasSubstr("scheduler"));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "goodput_per_s", "--where", "rate_per_s=9"}), HasSubstr("its values: 1, 2"));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "goodput_per_s", "--where", "x"}), HasSubstr("is not AXIS=VALUE"));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "$/1M tokens"}), HasSubstr("has no column '$/1M tokens'; known: "));
  EXPECT_THAT(error({"--rows", "scheduler", "--metric", "bindin"}), HasSubstr("did you mean 'binding'"));
}

}  // namespace
}  // namespace kvlab
