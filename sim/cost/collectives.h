#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/link_model.h"
#include "sim/cost/sample_grid.h"

namespace kvlab {

struct ModelSpec;
struct Parallel;

// Measured times of one collective over one number of ranks, by the bytes of its message (message_of in link_model.h).
struct CollectiveTable {
  Collective op = Collective::kAllReduce;
  int ranks = 2;
  std::string library, version;     // that was measured, for example vllm 0.19.0; empty: not said
  SampleGrid points;                // one axis, bytes; at least one
  std::vector<std::string> places;  // "file:line" of each point

  // Between two points on the straight line in the logarithms of both, beyond the last at its rate, below the first its time.
  [[nodiscard]] SampleGrid::Value at(double bytes) const;
};

// The tables of one profile or card.
struct CollectiveTables {
  std::vector<CollectiveTable> tables;
  bool falls_back = false;  // for ranks that an operation has no table of, the next source is taken; else that is an error
};

// The engine that runs, or that a profile was measured with: "vllm", "0.19.0". Empty: not known.
struct EngineName {
  std::string name, version;
};

// A collective that the run's parallelism uses.
struct CollectiveUse {
  Collective op;
  int ranks;
};
std::vector<CollectiveUse> collectives_of(const ModelSpec& model, const Parallel& parallel);
// Bytes of one message in a step of `tokens` of one scheduler, with dp of each rank's.
double message_bytes(const ModelSpec& model, const Parallel& parallel, Collective op, std::int64_t tokens);

// Prices collectives: by the profile's table, else by the card's, else by the model of its links. Several tables of one
// operation and ranks: the engine's own library is taken, else the one that the file names first; of its versions the newest that is not
// newer than the engine's, else the oldest.
class Collectives {
 public:
  // For an unknown engine the newest table is taken.
  Collectives(CollectiveTables profile, std::shared_ptr<const CollectiveTables> card, LinkModel links, const EngineName& engine);
  Collectives(CollectiveTables profile, CollectiveTables card, LinkModel links, const EngineName& engine)
      : Collectives(std::move(profile), std::make_shared<const CollectiveTables>(std::move(card)), std::move(links), engine) {}
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  [[nodiscard]] SampleGrid::Value time(Collective op, double bytes, int ranks) const;
  [[nodiscard]] bool is_measured(Collective op, int ranks) const { return find(op, ranks) != nullptr; }
  // "all_reduce over 2 ranks by vllm 0.19.0, FILE:LINE", or by the datasheet.
  [[nodiscard]] std::string basis(const CollectiveUse& use) const;
  // InputError where a source has tables of the operation and none for these ranks, and does not fall back.
  void require(const CollectiveUse& use) const;

 private:
  [[nodiscard]] const CollectiveTable* find(Collective op, int ranks) const;

  CollectiveTables profile_;
  std::shared_ptr<const CollectiveTables> card_;
  LinkModel links_;
  std::map<std::pair<Collective, int>, const CollectiveTable*> chosen_;  // by operation and ranks, of profile_ and card_
};

// A point that cannot be right, with its file:line.
struct CollectiveFinding {
  bool is_impossible;  // for the link; else a time that falls by a fifth or more where the message grows
  std::string text;
};
std::vector<CollectiveFinding> check_collectives(const std::vector<CollectiveTable>& tables, const LinkModel& links);

}  // namespace kvlab
