#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "app/commands/cite.h"
#include "app/commands/command.h"
#include "app/commands/describe.h"
#include "kernels/device/cuda/memory.h"
#include "tests/app/app_fixture.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

const std::vector<std::string> kLlama = {"--model", "llama-3.1-8b", "--hardware", "h100"};

struct EstimateTest : AppTest {
  static nlohmann::json figures(const std::string& command, std::vector<std::string> more) {
    more.insert(more.end(), kLlama.begin(), kLlama.end());
    return nlohmann::json::parse(call_ok({command, "--json"}, more).out);
  }
};

// Llama 3.1 8B: 32 layers of 218.1 M weights in products, a head of 525.3 M, 2 x 32 x 8 x 128 values of K and V in bf16. H100: 989.4
// TFLOP/s, 3.35 TB/s, 84,983,939,072 bytes.
TEST_F(EstimateTest, MemoryAndPeakTimesByHand) {
  const nlohmann::json e = figures("estimate", {"--prompt-tokens", "1024", "--output-tokens", "128"});
  EXPECT_EQ(std::tuple(e["kv_bytes_per_token"], e["sequence_kv_bytes"], e["weights_bytes"]),
            std::tuple(131'072, 1152 * 131'072, 16'060'522'496));
  EXPECT_EQ(e["max_batch"], 400) << "(0.9 x 84,983,939,072 - 16,060,522,496) / 150,994,944 = 400.2";
  EXPECT_EQ(e["batch"], 400);
  const double layer_weights = 32 * 218.1e6, head_weights = 525.3e6;
  const double prompt_flops = 2 * layer_weights * 1024 + 2.0 * 1024 * 1024 * 4096 * 32 + 2 * head_weights;
  EXPECT_NEAR(e["ttft_at_peak_ms"].get<double>(), 1e3 * prompt_flops / 989.4e12, 0.01 * 14.7);
  const nlohmann::json one = figures("estimate", {"--batch", "1"});
  const double step_bytes = 2 * (layer_weights + head_weights) + 1087.0 * 131'072;
  EXPECT_NEAR(one["tpot_at_peak_ms"].get<double>(), 1e3 * step_bytes / 3.35e12, 0.01 * 4.52);
  EXPECT_GT(one["tpot_ms"].get<double>(), one["tpot_at_peak_ms"].get<double>());
}

TEST_F(EstimateTest, RatesEnergyAndPriceByHand) {
  const nlohmann::json e =
      figures("estimate", {"--batch", "50", "--output-tokens", "101", "--watts", "1000", "--pue", "1.25", "--tp", "2"});
  const double ttft = e["ttft_ms"], tpot = e["tpot_ms"], ttft_peak = e["ttft_at_peak_ms"], tpot_peak = e["tpot_at_peak_ms"];
  const double seconds = 1e-3 * (50 * ttft + 100 * tpot), at_peak = 1e-3 * (50 * ttft_peak + 100 * tpot_peak), tokens = 50 * 101;
  const auto expect = [&](const char* key, double value) { EXPECT_NEAR(e[key].get<double>(), value, 1e-9 * value) << key; };
  expect("output_tokens_per_s", tokens / seconds);
  expect("dollars_per_million_tokens", 2 * 3.99 / 3600 * seconds / tokens * 1e6);
  const double joules = 2 * (140 * seconds + 560 * at_peak) / tokens;
  expect("energy_j_per_token", joules);
  expect("power_bound_tokens_per_s", 1000 / (1.25 * joules));
  expect("bound_tokens_per_s", std::min(1000 / (1.25 * joules), tokens / seconds));
  const nlohmann::json alone = figures("estimate", {"--batch", "1", "--output-tokens", "101", "--tp", "2"});
  expect("alone_ms", alone["ttft_ms"].get<double>() + 100 * alone["tpot_ms"].get<double>());
  expect("alone_dollars", 2 * 3.99 / 3600 * 1e-3 * e["alone_ms"].get<double>());
  expect("alone_energy_j", 2 * 700 * 1e-3 * e["alone_ms"].get<double>());
  expect("context_switch_ms", 1e3 * e["sequence_kv_bytes"].get<double>() / 63e9);
}

TEST_F(EstimateTest, TableAndErrors) {
  EXPECT_THAT(call({"estimate", "--output-tokens", "1"}, {"--model", "llama-3.1-8b", "--hardware", "h20"}).out,
              has_all({"llama-3.1-8b on 1 x H20 96GB, 1024 + 1 tokens; step times: roofline\n",
                       "\ntpot_ms                                  -   ", "no price: add 'price_per_hour: USD' to "}));
  EXPECT_THAT(error_of_call({"estimate", "--model", "llama-3.1-70b", "--hardware", "h100"}),
              HasSubstr("0 sequences of 1024 + 128 tokens of llama-3.1-70b fit on 1 x H100 SXM 80GB"));
  EXPECT_THAT(error_of_call({"estimate", "--batch", "401"}, kLlama), HasSubstr("400 sequences of"));
  EXPECT_EQ(call({"estimate", "--hardware", "h100"}).status, 2);
  EXPECT_THAT(call({"estimate", "--model", "llama-3.1-8b", "--hardware", "h10O"}).err, HasSubstr("did you mean 'h100'"));
}

// A layer of Llama: two norms, QKV, rotary, append, attention, output, gate and up, activation, down. A step: embedding, norm, head,
// sampler.
TEST_F(EstimateTest, LaunchesOfAStep) {
  const nlohmann::json c = figures("characterize", {"--batch", "48", "--dispatch-us", "25"});
  std::vector<int> batches;
  for (const auto& point : c["points"]) {
    batches.push_back(point["batch"]);
    EXPECT_EQ(point["kernels"], 32 * 10 + 4);
    EXPECT_NEAR(point["host_us"].get<double>(), (32 * 10 + 4) * 25.0, 1e-6);
  }
  EXPECT_EQ(batches, (std::vector<int>{1, 2, 4, 8, 16, 32, 48}));
  // Launches take 8.1 ms. Weights of 15 GB at 0.8 x 3.35 TB/s take 5.6 ms, to which 128 products and 32 attentions add floors of 4 and 10
  // us, and each row 67 MB of KV: 25 us. 512 prompt tokens at 0.8 x 989 TFLOP/s take 9 ms.
  EXPECT_EQ(c["transition_batch"], 48);
  EXPECT_TRUE(figures("characterize", {"--batch", "32", "--dispatch-us", "25"})["transition_batch"].is_null());
  EXPECT_EQ(figures("characterize", {"--prefill", "--dispatch-us", "25"})["transition_batch"], 1);
  EXPECT_EQ(figures("characterize", {"--prefill", "--tokens", "128", "--dispatch-us", "25"})["transition_batch"], 4);
  EXPECT_THAT(call({"characterize"}, kLlama).out, HasSubstr("the GPU is the bound at every batch of the sweep"));
}

// `kvlab profile`, through the front.

using ProfileCli = AppTest;

const std::vector<std::string> kTinyMachine{"--model", "model.yaml", "--hardware", "card.yaml"};

// calibrate writes our own format; a bundle is told from it by its files.
TEST_F(ProfileCli, AFolderSaysItsFormat) {
  write("model.yaml", kTinyModel);
  write("card.yaml", kTinyCard);
  const TinyBundle bundle;
  call_ok({"profile", "convert", bundle.path(), "own"});
  for (const std::string& folder : {bundle.path(), std::string("own")})
    EXPECT_EQ(call_ok({"profile", "lint", folder}, kTinyMachine).out, folder + ": 0 errors, 0 warnings\n");
  EXPECT_EQ(call({"profile", "convert", "own", "again"}).status, 0);
  EXPECT_EQ(read("again/tp1/attention.csv"), read("own/tp1/attention.csv"));
}

TEST_F(ProfileCli, FoldersThatCannotBeReadAreNamed) {
  write("vidur/mlp.csv", "no table\n");
  EXPECT_THAT(call({"profile", "convert", "vidur", "own"}).err, HasSubstr("vidur/mlp.csv"));
  // They are of no model, so they have no form in which one model's profile is written.
  write("shapes/gemm_bfloat16.csv", "n,k,m,time_ns\n");
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--format", "aisimulate"}})
    EXPECT_THAT(error_of_call({"profile", "convert", "shapes", "own"}, more), HasSubstr("needs Python: call it as ./kvlab"));
  fs::create_directories("none/tp1");
  const std::string message = ": holds no profile: tp<N>/ops.yaml would make it one of kvlab, tp<N>/dense.csv a bundle, mlp.csv Vidur's\n";
  for (const std::string folder : {"none", "missing"}) EXPECT_EQ(error_of_call({"profile", "lint", folder}), "kvlab: " + folder + message);
}

// Runs the command in the line exactly as it is written there.
TEST_F(ProfileCli, TheCommandThatARunNamesPrintsItsRemarks) {
  const TinyBundle bundle;
  std::string dense = read(bundle.path() + "/tp1/dense.csv");
  const std::string entry = "down_proj,128,13.800000";
  bundle.write("tp1/dense.csv", dense.replace(dense.find(entry), entry.size(), "down_proj,128,0.0121"));
  write("tiny.yaml", tiny_experiment(bundle, "bundle", ", impossible: keep") +
                         "trace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: "
                         "3}}\nscheduler: vllm_v1\nmemory: {num_blocks: 60}\nmax_model_len: 200\n");
  const Called run = call_ok({"run", "tiny.yaml"});
  const std::string before = "(2 remarks: kvlab ";
  const std::size_t at = run.out.find(before);
  ASSERT_NE(at, std::string::npos) << run.out;
  std::istringstream words(run.out.substr(at + before.size(), run.out.find(')', at) - at - before.size()));
  const Called lint = call({std::istream_iterator<std::string>(words), {}});
  EXPECT_EQ(lint.status, 1) << lint.err;
  EXPECT_THAT(lint.out, has_all({"error (tp 1): down_proj at tokens 128", ": 1 errors, 1 warnings\n"}));
}

// Tables that calibrate has no kernel for are no finding; what the reader had to decide is told.
TEST_F(ProfileCli, LintTakesWhatIsThere) {
  const TinyBundle bundle;
  write("model.yaml", kTinyModel);
  write("card.yaml", kTinyCard);
  bundle.write("tp1/per_sequence.csv", "layer,sequences,time_us\nlm_head,1,6\nlm_head,8,13\n");
  EXPECT_EQ(call({"profile", "lint", bundle.path()}, kTinyMachine).out, bundle.path() + ": 0 errors, 0 warnings\n");
  EXPECT_THAT(call({"profile", "lint", bundle.path(), "--tp", "2"}, kTinyMachine).err, HasSubstr("no folder tp2"));
}

// `kvlab trace` of experiments, through the front.

// Mistakes that a person makes with `kvlab calibrate` are answered before anything is measured.
TEST_F(ProfileCli, MistakesOfCalibrateAreAnsweredInOneLine) {
  const std::pair<std::vector<std::string>, const char*> mistakes[] = {
      {{}, "Exactly 1 option from [--cpu,--gpu] is required"},
      {{"--cpu", "--gpu", "0"}, "Exactly 1 option from [--cpu,--gpu] is required"},
      {{"--cpu", "--minutes", "0"}, "--minutes 0 is outside (0, 1440]; about 10 give a GPU's profile"},
      {{"--cpu", "--minutes", "-1"}, "--minutes -1 is outside"},
      {{"--cpu", "--minutes", "soon"}, "--minutes"},
      {{"--cpu", "--model", "llama-3.1-8B"}, "unknown model 'llama-3.1-8B'"},
      {{"--cpu", "--model", "mixtral-8x7b"}, "mixtral-8x7b has experts, which calibrate does not time"},
      {{"--cpu", "--kv-policy", "snapvk"}, "unknown recipe 'snapvk'; did you mean 'snapkv'?"},
      {{"--cpu", "--kv-policy", "kivi2", "oracle"}, "recipe 'oracle' does not run in the engine"},
      {{"--cpu", "--hardware", "h1OO"}, "unknown hardware 'h1OO'"},
      {{"--gpu", "99"}, num_gpus() == 0 ? "--gpu 99: no GPU: " : "--gpu 99: no GPU 99"},
  };
  for (const auto& [arguments, message] : mistakes) {
    const Called called = call({"calibrate", "--out", "profile"}, arguments);
    EXPECT_EQ(std::tuple(called.status, called.out, fs::exists("profile")), std::tuple(2, "", false)) << message;
    EXPECT_THAT(called.err, HasSubstr(message));
    EXPECT_EQ(std::count(called.err.begin(), called.err.end(), '\n'), 1) << called.err;
  }
}

using TraceCli = AppTest;

TEST_F(TraceCli, ATraceThatIsSeveralIsRefused) {
  std::string text = std::string(kSmall) + "scheduler: [vllm_v1, sarathi]\n";
  write("lists.yaml", text);
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml"}).status, 0);  // lists elsewhere make no difference
  write("lists.yaml", text.replace(text.find("requests: 60"), 12, "requests: [60, 70]"));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"trace", "inspect", "lists.yaml"}, {"trace", "generate", "lists.yaml", "out.csv"}}) {
    EXPECT_EQ(
        error_of_call(command),
        "kvlab: lists.yaml: its trace is several, by the list 'trace.generate.requests': choose with --set generate.requests=VALUE\n");
  }
  EXPECT_FALSE(fs::exists("out.csv"));
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml", "--set", "generate.requests=[70]"}).status, 0);
  EXPECT_EQ(call_ok({"trace", "generate", "lists.yaml", "out.csv", "--set", "generate.requests=70"}).out, "wrote out.csv: 70 requests\n");
  write("lists.yaml", "trace: [{file: a.csv}, {file: b.csv}]\n");
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml"}).err,
            "kvlab: lists.yaml: its trace is several, by the list 'trace': name a file, or leave one in the list\n");
}

// ---- `kvlab trace fetch` with file:// addresses, which curl reads without a network

struct FetchTest : AppTest {
  static bool has_curl() { return std::system("command -v curl >/dev/null 2>&1") == 0; }
  void write_list(const std::string& sha256, const std::string& address = "") {
    write("there.csv", "abc");
    const std::string at = address.empty() ? "file://" + fs::absolute("there.csv").string() : address;
    write("list.yaml",
          "mine:\n  title: A trace\n  address: " + at + "\n  file: mine.csv\n  sha256: " + sha256 + "\n  licence: none\n  format: azure\n");
  }
};

constexpr const char* kSumOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // FIPS 180-4's example

TEST_F(FetchTest, DownloadsChecksKeepsAndGoesOn) {
  if (!has_curl()) GTEST_SKIP() << "curl is absent";
  write_list(kSumOfAbc);
  const Called first = call_ok({"trace", "fetch", "mine", "--list", "list.yaml"});
  EXPECT_EQ(read("public/mine.csv"), "abc");
  EXPECT_THAT(first.out, HasSubstr("wrote public/mine.csv: 3 bytes"));
  EXPECT_FALSE(fs::exists("public/mine.csv.part"));
  EXPECT_THAT(call({"trace", "fetch", "mine", "--list", "list.yaml"}).out, HasSubstr("is there already"));
  EXPECT_THAT(call({"trace", "fetch", "--list", "list.yaml"}).out, HasSubstr("A trace (fetched)"));
  fs::remove("public/mine.csv");
  write("public/mine.csv.part", "ab");
  EXPECT_EQ(call({"trace", "fetch", "mine", "--list", "list.yaml"}).status, 0);
  EXPECT_EQ(read("public/mine.csv"), "abc");
}

TEST_F(FetchTest, AWrongSumIsNotKeptAndAnUnknownOneIsPrinted) {
  if (!has_curl()) GTEST_SKIP() << "curl is absent";
  write_list(std::string(64, '0'));
  EXPECT_THAT(error_of_call({"trace", "fetch", "mine", "--list", "list.yaml"}), HasSubstr(std::string("is ") + kSumOfAbc + ", not 0000"));
  for (const char* file : {"public/mine.csv", "public/mine.csv.part"}) EXPECT_FALSE(fs::exists(file));
  write_list("unknown");
  EXPECT_THAT(call({"trace", "fetch", "mine", "--list", "list.yaml"}).out, HasSubstr(std::string("sha256 ") + kSumOfAbc));
}

TEST_F(FetchTest, WithoutAConnectionItSaysWhereToPutTheFile) {
  write_list("unknown", "file:///nonexistent/there.csv");
  EXPECT_THAT(error_of_call({"trace", "fetch", "mine", "--list", "list.yaml"}),
              HasSubstr("save it elsewhere and put it at public/mine.csv"));
  EXPECT_EQ(call({"trace", "fetch", "mien", "--list", "list.yaml"}).err, "kvlab: unknown public trace 'mien'; did you mean 'mine'?\n");
}

TEST_F(FetchTest, TheShippedListCanBeRead) {
  EXPECT_THAT(call({"trace", "fetch"}).out, HasSubstr("azure2023_conv"));
  EXPECT_THAT(call({"trace", "inspect", "mooncake_conversation"}).err, HasSubstr("mooncake_conversation"));
}

using ::testing::IsEmpty;

struct CiteTest : AppTest {
  static bool has(const std::string& text, const char* pattern) { return std::regex_search(text, std::regex(pattern)); }
};

void for_each_card(const std::function<void(const std::string& kind, const Item&)>& check) {
  for (const char* kind : {"schedulers", "orders", "predictors", "dispatchers", "systems", "block_caches", "kv", "trace_formats"})
    for (const Item& item : list_items(kind)) check(kind, item);
}

// "Van Durme" of "Van Durme, Benjamin and ...", without accents and braces of TeX.
std::vector<std::string> surnames_of(const Reference& entry) {
  const std::string all = std::regex_replace(entry.field("author"), std::regex(R"([{}]|\\['~^]?)"), "");
  std::vector<std::string> names;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end + 5) {
    end = std::min(all.find(" and ", begin), all.size());
    const std::string author = all.substr(begin, end - begin);
    names.push_back(author.substr(0, author.find(',')));
  }
  return names;
}

bool ends_with_word(const std::string& text, const std::string& word) {
  return text == word || text.ends_with(" " + word) || text.ends_with("{" + word);
}

TEST_F(CiteTest, EveryPolicyAndRecipeHasAnEntry) {
  const References references;
  std::vector<std::string> names;
  for_each_card([&](const std::string& kind, const Item& item) {
    names.push_back(item.name);
    const std::vector<const Reference*> cited = references.cited_in(item.source);
    EXPECT_THAT(references.unknown_numbers(item.source), IsEmpty()) << kind << " " << item.name << ": " << item.source;
    EXPECT_TRUE(!cited.empty() || !references.why_no_paper(kind, item.name).empty()) << kind << " " << item.name;
  });
  EXPECT_GT(names.size(), 300U);
  EXPECT_THAT(citations(names), Not(HasSubstr("unverified")));
}

// The list has existing cards only, each with a reason, and none that cites a paper. A part and a recipe may share a name.
TEST_F(CiteTest, CardsWithoutPaperExistAndCiteNone) {
  const References references;
  EXPECT_FALSE(references.no_papers().empty());
  for (const auto& [card, reason] : references.no_papers()) {
    EXPECT_GT(reason.size(), 3U) << card.second;
    EXPECT_THAT(reason, Not(HasSubstr("@"))) << card.second;  // BibTeX would begin an entry
    bool is_there = false;
    for (const Item& item : list_items(card.first)) {
      if (item.name != card.second) continue;
      is_there = true;
      EXPECT_THAT(references.cited_in(item.source), IsEmpty()) << item.name << ": " << item.source;
    }
    EXPECT_TRUE(is_there) << card.first << " " << card.second;
  }
}

// They are distinct. A number of arXiv begins with its year and month; nothing is published before it.
TEST_F(CiteTest, EntriesHaveAuthorTitleYearAndALink) {
  std::set<std::string> numbers, titles;
  const std::set<std::string> without_author = {"kvgrad2026"};  // under review, without names
  // "Surname, Given" or a {Group}; a list ends with "others" at most.
  const std::regex authors(R"((\{[^{}]+\}|[^,]+, [^,]+)( and [^,]+, [^,]+)*( and others)?)");
  const References references;
  EXPECT_GT(references.all().size(), 100U);
  for (const Reference& entry : references.all()) {
    const std::string author = entry.field("author");
    EXPECT_EQ(author.empty(), without_author.contains(entry.key)) << entry.key;
    EXPECT_TRUE(author.empty() || std::regex_match(author, authors)) << entry.key << ": " << author;
    EXPECT_TRUE(has(entry.field("title"), "^\\{[^{].*\\}$")) << entry.key << ": braces keep capitals";
    EXPECT_TRUE(has(entry.field("year"), "^(19|20)[0-9]{2}$")) << entry.key;
    EXPECT_FALSE((entry.field("eprint") + entry.field("doi") + entry.field("url")).empty()) << entry.key;
    EXPECT_EQ(entry.field("eprint").empty(), entry.field("archivePrefix").empty()) << entry.key;
    EXPECT_EQ(entry.type == "inproceedings", !entry.field("booktitle").empty()) << entry.key;
    EXPECT_EQ(entry.type == "article", !entry.field("journal").empty()) << entry.key;
    EXPECT_FALSE(has(entry.text(), "unverified|TODO|[^ -~\n]")) << entry.key;
    EXPECT_TRUE(titles.insert(entry.field("title")).second) << entry.key;
    const std::string number = entry.field("eprint");
    EXPECT_TRUE(number.empty() || numbers.insert(number).second) << entry.key;
    EXPECT_TRUE(number.empty() || has(number, "^[0-9]{2}(0[1-9]|1[0-2])\\.[0-9]{4,5}$")) << entry.key;
    EXPECT_TRUE(number.empty() || 2000 + std::stoi(number.substr(0, 2)) <= std::stoi(entry.field("year"))) << entry.key;
    for (const auto& [name, value] : entry.fields)
      EXPECT_EQ(std::count(value.begin(), value.end(), '{'), std::count(value.begin(), value.end(), '}')) << entry.key << " " << name;
  }
}

// "Name et al. 2024, arXiv:..." in a card is the first author and the year of the entry with this number, or the year of the number.
TEST_F(CiteTest, CardsNameTheAuthorsOfTheirNumbers) {
  static const std::regex citation(
      R"(([A-Z][A-Za-z'-]+)( et al\.| and (?:[A-Z][a-z]+ )?([A-Z][A-Za-z'-]+))? (20[0-9]{2}),(?: [A-Z]+,)? arXiv:([0-9.]+[0-9]))");
  const References references;
  std::size_t checked = 0;
  for_each_card([&](const std::string& kind, const Item& item) {
    for (auto at = std::sregex_iterator(item.source.begin(), item.source.end(), citation); at != std::sregex_iterator(); ++at) {
      const std::vector<const Reference*> cited = references.cited_in("arXiv:" + (*at)[5].str());
      ASSERT_EQ(cited.size(), 1U) << item.source;
      const std::vector<std::string> authors = surnames_of(*cited[0]);
      const std::string where = kind + " " + item.name + ": " + (*at)[0].str() + " of " + cited[0]->field("author");
      EXPECT_TRUE(ends_with_word(authors.at(0), (*at)[1])) << where;
      if ((*at)[3].matched) {
        EXPECT_TRUE(authors.size() == 2 && ends_with_word(authors[1], (*at)[3])) << where;
      } else if ((*at)[2].matched) {
        EXPECT_TRUE(authors.size() > 2 || authors.back() == "others") << where;
      }
      EXPECT_TRUE((*at)[4] == cited[0]->field("year") || (*at)[4] == "20" + (*at)[5].str().substr(0, 2)) << where;
      ++checked;
    }
  });
  EXPECT_GT(checked, 200U);
}

TEST_F(CiteTest, FormOfTheFileIsChecked) {
  const std::vector<Reference> read =
      parse_references("% remark\n\n@misc{a1,\n  title = {{A {B}}},\n  cited_as = {A},\n  year = {2020}\n}\n", "r");
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].field("title"), "{A {B}}");
  EXPECT_EQ(read[0].text(), "@misc{a1,\n  title = {{A {B}}},\n  year = {2020}\n}");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n  year = 2020\n}\n", "r.bib"); }),
            "r.bib:2: a field is '  name = {value},' on one line");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n}\n@misc{a,\n}\n", "r.bib"); }), "r.bib:3: the key 'a' is there twice");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n  year = {1},\n  year = {2}\n}\n", "r.bib"); }),
            "r.bib:3: the field 'year' is there twice");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n  year = {1}\n", "r.bib"); }), "r.bib:2: the entry 'a' has no closing '}'");
  EXPECT_EQ(error_of([] { parse_references("misc{a,\n", "r.bib"); }), "r.bib:1: an entry begins with '@type{key,'");
}

TEST_F(CiteTest, KnownPapersAreCitedAndOthersAreRemarked) {
  const std::string sarathi = citations({"sarathi"});
  EXPECT_THAT(sarathi,
              has_all({"Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", "eprint = {2308.16369}", "@misc{kvlab,"}));
  EXPECT_THAT(sarathi, Not(HasSubstr("unverified")));
  EXPECT_THAT(citations({"belady"}), HasSubstr("A study of replacement algorithms"));
  EXPECT_THAT(citations({"round_robin"}), HasSubstr("% round_robin (dispatchers): no paper; folklore"));
  EXPECT_THAT(citations({"round_robin"}), Not(HasSubstr("@misc{kvlab_")));
  EXPECT_THAT(citations({"orca"}), Not(HasSubstr("cited_as")));
  EXPECT_THAT(error_of([] { citations({"sarati"}); }), HasSubstr("did you mean 'sarathi'?"));
}

TEST_F(CiteTest, AResultCitesWhatItUsed) {
  write("exp.yaml", std::string(kSmall) + "scheduler: [orca, {sarathi: {budget_tokens: 256}}]\nkv_policy: full\n");
  call_ok({"run", "exp.yaml", "--quiet"});
  const Called called = call_ok({"cite", "results/small"});
  EXPECT_THAT(called.out,
              has_all({"Orca: A Distributed Serving System", "Sarathi-Serve", "https://huggingface.co/meta-llama/Llama-3.1-8B"}));
  EXPECT_THAT(called.out, Not(HasSubstr("S3-FIFO")));
  EXPECT_EQ(call({"cite", "."}).err, "kvlab: .: is no results folder: it has no resolved.yaml\n");
}

}  // namespace
}  // namespace kvlab
