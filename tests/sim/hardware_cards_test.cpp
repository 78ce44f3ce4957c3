// Hardware files are read once for each process: again only where a text has changed.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <thread>
#include <vector>

#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/usage.h"
#include "sim/cost/hardware_spec.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

std::string tables(int ns) {
  return "hardware: card\nsource: made up\ntables:\n  - {op: all_reduce, ranks: 2, points: [[1024, " + std::to_string(ns) + "]]}\n";
}

struct HardwareCards : ::testing::Test {
  HardwareCards() {
    folder_.write("sums.yaml", tables(4000));
    folder_.write("card.yaml", std::string(kTinyCard) + "collectives: sums.yaml\n");
  }
  [[nodiscard]] HardwareSpec load() const { return load_hardware_spec(folder_.file("card.yaml"), folder_.path()); }
  [[nodiscard]] static double sum_ps(const HardwareSpec& h) { return h.collectives->tables.front().at(1024).ps; }
  TempFolder folder_;
};

TEST_F(HardwareCards, AnUnchangedFileIsReadOnce) {
  const HardwareSpec first = load_hardware_spec("h100", shipped_profiles("hardware")),
                     second = load_hardware_spec("h100", shipped_profiles("hardware"));
  EXPECT_EQ(first.collectives, second.collectives);  // one object
  EXPECT_EQ(first.memory_bytes, second.memory_bytes);
}

TEST_F(HardwareCards, AFileOfThisMomentIsReadAgain) {  // its times may not show a later change
  const HardwareSpec first = load(), second = load();
  EXPECT_NE(first.collectives, second.collectives);
  EXPECT_EQ(sum_ps(second), 4e6);
}

TEST_F(HardwareCards, AChangedTextIsReadAgain) {
  EXPECT_EQ(sum_ps(load()), 4e6);
  folder_.write("sums.yaml", tables(5000));
  EXPECT_EQ(sum_ps(load()), 5e6);
  folder_.write("card.yaml", std::string(kTinyCard) + "sms: 7\ncollectives: sums.yaml\n");
  EXPECT_EQ(load().sms, 7);
  folder_.write("card.yaml", std::string(kTinyCard) + "smms: 7\n");
  EXPECT_NE(error_of([&] { static_cast<void>(load()); }), "no error");
  folder_.write("card.yaml", kTinyCard);
  EXPECT_TRUE(load().collectives->tables.empty());
}

TEST_F(HardwareCards, AMissingFileOfTablesIsAnError) {
  static_cast<void>(load());
  std::filesystem::remove(folder_.file("sums.yaml"));
  EXPECT_NE(error_of([&] { static_cast<void>(load()); }), "no error");
}

// Input files of a run are noted whether they are read or not.
TEST_F(HardwareCards, BothFilesAreNotedEachTime) {
  for (int i = 0; i < 2; ++i) {
    const UsageLog log;
    static_cast<void>(load());
    EXPECT_EQ(log.files(), (std::set<std::string>{folder_.file("card.yaml"), folder_.file("sums.yaml")})) << i;
  }
}

TEST_F(HardwareCards, RunsOfASweepLoadItTogether) {
  std::vector<double> found(8);
  std::vector<std::thread> threads;
  for (double& ps : found)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) ps = sum_ps(load());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<double>(8, 4e6));
}

std::string default_text(const HardwareKey::Default& absent) {
  if (absent.is_required) return "required";
  if (absent.of == nullptr) return fmt::format("{:.3g}", absent.value);
  return (absent.value == 1 ? "" : fmt::format("{:.3g} x ", absent.value)) + absent.of;
}

TEST(HardwareKeys, AreInTheReadmeOfProfiles) {
  const std::string readme = read_file(std::string(KVLAB_SOURCE_DIR) + "/profiles/README.md", "text");
  for (const HardwareKey& key : hardware_keys()) {
    const std::string row = fmt::format("\n| `{}` | {} | {:.3g} to {:.3g} | {} | {} |\n", key.key, key.unit, key.min, key.max,
                                        default_text(key.absent), key.text);
    EXPECT_NE(readme.find(row), std::string::npos) << row;
  }
}

TEST(HardwareKeys, EachSetsItsField) {
  const TempFolder folder;
  for (const HardwareKey& key : hardware_keys()) {
    const double given = key.max == 1 ? 0.5 : key.min < 1e9 ? 1e9 < key.max ? 2e9 : key.max / 2 : 4e12;
    std::string card = "source: made up\n";
    for (const HardwareKey& other : hardware_keys())
      if (other.absent.is_required && other.key != key.key) card += fmt::format("{}: {}\n", other.key, std::int64_t{1} << 40);
    folder.write("card.yaml", card + fmt::format("{}: {:.17g}\n", key.key, given));
    EXPECT_EQ(hardware_value(load_hardware_spec(folder.file("card.yaml"), folder.path()), key.key), given) << key.key;
  }
}

// Names of GPUs as drivers, clouds and shops write them give the card that they name, and never another.

const std::string kCards = KVLAB_SOURCE_DIR "/profiles/hardware";

std::vector<std::string> cards(const std::string& name) {
  std::vector<std::string> stems;
  for (const std::string& file : hardware_meant(name, kCards)) stems.push_back(std::filesystem::path(file).stem().string());
  return stems;
}

TEST(HardwareNames, AreResolvedWhereOneCardIsMeant) {
  const std::map<std::string, std::vector<std::string>> names_of = {
      {"h100", {"H100-80GB-SXM5", "NVIDIA H100 80GB HBM3", "H100 SXM 80GB", "HGX H100", "H100"}},
      {"h100-pcie", {"H100-PCIe", "NVIDIA H100 PCIe", "H100_PCIE_80GB"}},
      {"h100-nvl", {"NVIDIA H100 NVL"}},
      {"h200", {"NVIDIA H200"}},
      {"h800", {"H800"}},
      {"a100-80gb", {"A100-SXM4-80GB"}},
      {"a100-40gb", {"NVIDIA A100-SXM4-40GB"}},
      {"a100-pcie-80gb", {"NVIDIA A100 80GB PCIe"}},
      {"a100-pcie-40gb", {"NVIDIA A100-PCIE-40GB"}},
      {"a10g", {"NVIDIA A10G"}},
      {"a10", {"NVIDIA A10-24GB", "A10 PCIe"}},
      {"l40s", {"L40S-48GB"}},
      {"l40", {"NVIDIA L40"}},
      {"t4", {"Tesla T4"}},
      {"rtx4090", {"NVIDIA GeForce RTX 4090"}},
      {"rtx6000ada", {"NVIDIA RTX 6000 Ada Generation"}},
      {"rtxpro6000", {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}},
      {"b200", {"NVIDIA B200"}},
      {"mi325x", {"AMD Instinct MI325X OAM"}},
      {"gb10", {"NVIDIA GB10", "DGX Spark"}}};
  for (const auto& [card, names] : names_of) {
    for (const std::string& name : names) {
      EXPECT_EQ(cards(name), std::vector<std::string>{card}) << name;
      EXPECT_EQ(std::filesystem::path(load_hardware_spec(name, kCards).file).stem().string(), card) << name;
    }
  }
}

TEST(HardwareNames, SeveralCardsAreSuggested) {
  EXPECT_EQ(cards("NVIDIA H100 80GB"), (std::vector<std::string>{"h100-pcie", "h100"}));
  EXPECT_EQ(cards("A100 SXM"), (std::vector<std::string>{"a100-40gb", "a100-80gb"}));
  EXPECT_EQ(cards("A100 PCIe"), (std::vector<std::string>{"a100-pcie-40gb", "a100-pcie-80gb"}));
  EXPECT_THAT(
      error_of([] { load_hardware_spec("A100 SXM", kCards); }),
      HasSubstr("unknown hardware 'A100 SXM': neither a file nor a name in " + kCards + "; did you mean 'a100-40gb' or 'a100-80gb'?"));
}

TEST(HardwareNames, AreNeverAnotherCard) {
  for (const char* name :
       {"H100 SXM 94GB", "H200 NVL", "H800 PCIe", "A100 SXM 81GB", "A10 SXM", "A10 48GB", "RTX 4090 D", "RTX 4090 Laptop GPU",
        "RTX PRO 6000 Blackwell Workstation Edition", "L4S", "B100", "MI300A", "H100 64GB HBM2", "T4G", "80GB", "SXM", "h1OO"}) {
    EXPECT_EQ(cards(name), std::vector<std::string>{}) << name;
    EXPECT_THAT(error_of([&] { load_hardware_spec(name, kCards); }), HasSubstr("unknown hardware")) << name;
  }
}

TEST(VersionNumbers, CompareAsVersions) {
  EXPECT_EQ(version_numbers("0.19.0"), (std::vector<int>{0, 19}));
  EXPECT_LT(version_numbers("0.9.1"), version_numbers("0.24.0"));
  EXPECT_EQ(version_numbers("1.3.0rc20"), (std::vector<int>{1, 3}));
  EXPECT_TRUE(version_numbers("nightly-0.19").empty());
  EXPECT_TRUE(version_numbers("").empty());
}

struct EngineTimesTest : ::testing::Test {
  EngineTimesTest() {
    folder_.write(
        "tiny.yaml",
        "source: made up\nversions:\n"
        "  \"0.6\": {host: {overlaps: false, step_us: 1000, sequence_us: 50}, device: {}}\n"
        "  \"0.14\": {host: {overlaps: true}, device: {step_us: 7, sequence_us: 3, layer_us: 2, qk_norm_us: 20, experts_us: 4}}\n");
  }
  EngineTimes read(const std::string& engine) {
    Params p = Params::from_text("engine: " + engine);
    return read_engine_times(p, folder_.path());
  }
  TempFolder folder_;
};

TEST_F(EngineTimesTest, OfTheNewestVersionThatIsNotNewer) {
  const EngineTimes old = read("{tiny: {version: 0.12.0}}");
  EXPECT_FALSE(old.host.overlaps);
  EXPECT_EQ(std::tuple(old.host_of(4), old.engine.name, old.engine.version), std::tuple(to_ps(Span(1'200'000)), "tiny", "0.12.0"));
  EXPECT_THAT(old.basis, HasSubstr("tiny 0.12.0 (0.6 of "));
  for (const char* version : {"{tiny: {version: 0.14.0}}", "{tiny: {version: 0.31.0}}", "{tiny: {version: nightly}}", "tiny"})
    EXPECT_EQ(read(version).device.qk_norm, to_ps(Span(20'000))) << version;
}

TEST_F(EngineTimesTest, NoEngineTakesNoTime) {
  Params p = Params::from_text("{}");
  const EngineTimes none = read_engine_times(p, folder_.path());
  EXPECT_FALSE(none.is_known());
  EXPECT_EQ(none.host_of(100), Picoseconds{});
}

TEST_F(EngineTimesTest, Errors) {
  EXPECT_THAT(error_of([&] { read("{tiny: {version: 0.5.0}}"); }), HasSubstr("has no host times for tiny 0.5.0: the first are of 0.6"));
  EXPECT_THAT(error_of([&] { read("tyni"); }), HasSubstr("known: tiny"));
  EXPECT_THAT(error_of([&] { read("{tiny: {verison: 0.6}}"); }), HasSubstr("verison"));
}

// 2 layers; queries and keys are not normalized.
TEST_F(EngineTimesTest, OfAStep) {
  CostSetup setup = setup_of(roofline_experiment(folder_));
  const StepShape shape = rows_shape({10, 12});
  const Picoseconds without = make_cost_model(setup)->step(shape).total;
  setup.engine = read("{tiny: {version: 0.19.0}}");
  const auto cost = make_cost_model(setup);
  EXPECT_EQ(cost->step(shape).total - without, to_ps(Span(7'000 + 2 * 3'000 + 2 * 2'000)));
  EXPECT_EQ(cost->decode_span(shape).base.total, cost->step(shape).total);
  EXPECT_EQ(cost->host_time(shape), Picoseconds{});
  setup.engine = read("{tiny: {version: 0.6.0}}");
  EXPECT_EQ(make_cost_model(setup)->host_time(shape), to_ps(Span(1'100'000)));
}

TEST(ShippedEngines, AreRead) {
  for (const char* engine : {"vllm", "trtllm", "sglang"}) {
    const CostSetup setup = setup_of(std::string("model: llama-3.1-8b\nhardware: h100\nengine: ") + engine);
    EXPECT_TRUE(setup.engine.host.overlaps) << engine;
  }
  EXPECT_FALSE(setup_of("model: llama-3.1-8b\nhardware: h100\nengine: {vllm: {version: 0.12.0}}").engine.host.overlaps);
}

}  // namespace
}  // namespace kvlab
