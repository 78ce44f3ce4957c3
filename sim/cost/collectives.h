#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/step_prices.h"

namespace kvlab {

// Bytes of each rank: all_reduce: input; all_gather: output; reduce_scatter, all_to_all: input with its own part; p2p: sent.
enum class Collective : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kP2p };
inline constexpr Collective kAllCollectives[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                                 Collective::kAllToAll, Collective::kP2p};
const char* collective_name(Collective op);  // "all_reduce"
std::optional<Collective> collective_of(const std::string& name);

// gpus: per machine; bytes_per_s: a GPU's share of the network, one direction.
struct MachineLinks {
  int gpus = 1 << 20;
  double bytes_per_s = 1e9, latency_ns = 0;
};

struct LinkModel {
  std::string card;
  double bytes_per_s = 0;       // per GPU and direction
  bool is_mesh = false;         // all-to-all NVLink, else PCIe through the CPU
  bool has_peer_access = true;  // PCIe: GPUs read each other's memory
  double latency_ns = 0;        // per wait between ranks
  MachineLinks machines{};

  // stride: in GPUs.
  [[nodiscard]] bool leaves_machine(int ranks, int stride = 1) const { return std::int64_t{ranks} * stride > machines.gpus; }
  [[nodiscard]] double ps(Collective op, double bytes, int ranks, int stride = 1) const;
  // Each rank's bytes cross its link once, summed on the way.
  [[nodiscard]] double least_ps(Collective op, double bytes, int ranks) const;

 private:
  [[nodiscard]] double inside_ps(Collective op, double bytes, int ranks) const;
  [[nodiscard]] double across_ps(Collective op, double bytes, int ranks, int stride) const;
};

// Repetitions scatter within the datasheet margin. A larger fall as work grows is another measurement's. Units differ by 1000, no large
// operation this far from its roofline.
inline constexpr double kDatasheetMargin = 1.02, kFallTolerance = 0.2, kUnitFactor = 300;

struct ConfigFile;
class Params;

// Times by message bytes.
struct CollectiveTable {
  Collective op = Collective::kAllReduce;
  int ranks = 2;
  std::string library, version;     // e.g. vllm 0.19.0; empty: unknown
  SampleGrid points;                // one axis: bytes; not empty
  std::vector<std::string> places;  // "file:line"

  // Log-log; beyond the last point at its rate, below the first at its time.
  [[nodiscard]] SampleGrid::Value at(double bytes) const;
};

struct CollectiveTables {
  std::vector<CollectiveTable> tables;
  bool falls_back = false;  // without ranks use the next source, else throw
};

// Running engine, or the profile's: "vllm", "0.19.0". Empty: unknown.
struct EngineName {
  std::string name, version;
};

struct CollectiveUse {
  Collective op;
  int ranks;
};
std::vector<CollectiveUse> collectives_of(const ModelSpec& model, const Parallel& parallel);
// `tokens` of one scheduler (dp: of each rank).
double message_bytes(const ModelSpec& model, const Parallel& parallel, Collective op, std::int64_t tokens);

// Prices by the profile's table, else the card's, else the link model. Prefers the engine's library, else the first; the newest version not
// above the engine's, else the oldest.
class Collectives {
 public:
  // Unknown engine: newest version.
  Collectives(CollectiveTables profile, std::shared_ptr<const CollectiveTables> card, LinkModel links, const EngineName& engine);
  Collectives(CollectiveTables profile, CollectiveTables card, LinkModel links, const EngineName& engine)
      : Collectives(std::move(profile), std::make_shared<const CollectiveTables>(std::move(card)), std::move(links), engine) {}
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // stride: distance of ranks in GPUs. Tables are for neighbours.
  [[nodiscard]] SampleGrid::Value time(Collective op, double bytes, int ranks, int stride = 1) const;
  [[nodiscard]] bool is_measured(Collective op, int ranks) const { return find(op, ranks) != nullptr; }
  // "all_reduce over 2 ranks by vllm 0.19.0, FILE:LINE", or the datasheet.
  [[nodiscard]] std::string basis(const CollectiveUse& use) const;
  // Throws InputError if a source has the operation, not these ranks, and no fallback.
  void require(const CollectiveUse& use) const;

 private:
  [[nodiscard]] const CollectiveTable* find(Collective op, int ranks) const;

  CollectiveTables profile_;
  std::shared_ptr<const CollectiveTables> card_;
  LinkModel links_;
  std::map<std::pair<Collective, int>, const CollectiveTable*> chosen_;
};

struct LintFinding {
  enum class Severity : std::uint8_t { kWarning, kError } severity;
  std::string text;  // table, point, error, number of similar ones
};
// Errors: faster than the link. Warnings: falls by a fifth or more as the message grows.
std::vector<LintFinding> check_collectives(const std::vector<CollectiveTable>& tables, const LinkModel& links);

// Bytes over the busiest GPU's link in one direction, before a layer's experts, without its own part; as many return. A token crosses once
// per rank, or once per GPU with one of its experts.
std::int64_t exchange_volume(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group);

// Before and after the experts.
std::array<CollectiveUse, 2> exchange_collectives(const Parallel& parallel);
// Message of the even collective in which exchange_volume crosses every link.
double exchange_message_bytes(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group);

// Probability that one of `gpus` GPUs has an expert of a token, for distinct uniform experts.
double share_of_gpus(const ModelSpec& model, int gpus);

// `collectives:` of a hardware file: inline tables or a file in profiles/collectives; may be empty. Throws InputError with
// file:line:column, also for another card.
CollectiveTables read_card_collectives(Params& hardware, const ConfigFile& config, const std::string& card);

// Reads <op>.csv. Columns: bytes, time_ns or time_us, optional ranks (default: `ranks`) and spread_frac.
void read_collective_tables(const std::string& folder, int ranks, std::vector<CollectiveTable>& tables);

}  // namespace kvlab
