// Hardware files are read once for each process: again only where a text has changed.
#include <fmt/format.h>

#include <thread>
#include <vector>

#include "base/read_file.h"
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

TEST_F(HardwareCards, TheSameTextIsReadOnce) {
  const HardwareSpec first = load(), second = load();
  EXPECT_EQ(first.collectives, second.collectives);  // one object
  EXPECT_EQ(first.memory_bytes, second.memory_bytes);
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

}  // namespace
}  // namespace kvlab
