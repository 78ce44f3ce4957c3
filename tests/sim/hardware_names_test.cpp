// Names of GPUs as drivers, clouds and shops write them give the card that they name, and never another.

#include <filesystem>
#include <map>

#include "sim/cost/hardware_spec.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
