#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "policies/predictor/predictor.h"

namespace kvlab {

namespace {

// Outputs on this replica; VTC (Sheng et al. 2024, arXiv:2401.00588) takes a client's last 5.
class History final : public Predictor {
  enum class Per : std::uint8_t { kAll, kClient, kClass };

 public:
  explicit History(Params& p)
      : per_(p.choice("per", {{"all", Per::kAll}, {"client", Per::kClient}, {"class", Per::kClass}}, Per::kClient,
                      "whose requests are averaged: all, those of the client, those of the class")),
        last_(p.optional<std::uint32_t>("last", 5, 1, 1 << 20, "how many finished requests are averaged")),
        first_tokens_(p.optional<std::int32_t>("first_tokens", 256, 1, 1 << 29, "estimate while none has finished")) {}

  [[nodiscard]] std::vector<Fact> needs() const override {
    if (per_ == Per::kClient) return {Fact::kClient};
    return per_ == Per::kClass ? std::vector<Fact>{Fact::kClass} : std::vector<Fact>{};
  }

  std::int32_t output_tokens(const Request& r) override {
    const auto found = seen_.find(group_of(r));
    if (found == seen_.end()) return first_tokens_;
    const auto count = static_cast<std::int64_t>(found->second.lengths.size());
    return static_cast<std::int32_t>(std::max<std::int64_t>(1, (found->second.sum + count / 2) / count));
  }

  void on_finish(const Request& r) override {
    Seen& seen = seen_[group_of(r)];
    if (seen.lengths.size() < last_) {
      seen.lengths.push_back(r.output_tokens);
    } else {
      seen.sum -= seen.lengths[seen.next];
      seen.lengths[seen.next] = r.output_tokens;
      seen.next = (seen.next + 1) % last_;
    }
    seen.sum += r.output_tokens;
  }

 private:
  using Group = std::pair<std::int64_t, ClassName>;
  struct Seen {
    std::vector<std::int32_t> lengths;
    std::uint32_t next = 0;  // the oldest of a full ring
    std::int64_t sum = 0;
  };
  [[nodiscard]] Group group_of(const Request& r) const {
    if (per_ == Per::kClient) return {r.facts->client, {}};
    return per_ == Per::kClass ? Group{0, r.facts->request_class} : Group{};
  }

  Per per_;
  std::uint32_t last_;
  std::int32_t first_tokens_;
  std::map<Group, Seen> seen_;
};

KVLAB_REGISTER(Predictor, History, "history", "mean of the latest outputs of the same client or class",
               "the predictor of VTC, Sheng et al. 2024, arXiv:2401.00588");

}  // namespace

}  // namespace kvlab
