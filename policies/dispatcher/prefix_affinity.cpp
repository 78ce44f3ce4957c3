#include <algorithm>
#include <utility>
#include <vector>

#include "base/ceil_div.h"
#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// sgl-router/src/policies/cache_aware.rs. If no replica has enough of the prompt: the one given the least content. Unbalanced: fewest
// requests. SGLang estimates caches from what it sent; here replicas are asked.
class PrefixAffinity final : public Dispatcher {
 public:
  explicit PrefixAffinity(Params& p)
      : cache_threshold_(p.optional<double>("cache_threshold_frac", 0.3, 0, 1,
                                            "share of the prompt that a replica must hold more than, to be chosen for it")),
        abs_threshold_(
            p.optional<std::int64_t>("balance_abs_threshold", 64, 0, 1 << 30,
                                     "loads may be unbalanced when the largest exceeds the smallest by more requests than this, ...")),
        rel_threshold_(p.optional<double>("balance_rel_threshold", 1.5, 1, 1e6, "... and is more than this many times as large")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    read(ask.among, fleet);
    const std::size_t chosen = is_balanced() ? by_content(ask) : by_load();
    given_tokens_[index(ask.among[chosen])] += ask.request.prompt_tokens - cached_[chosen];
    return Placement::send(ask.among[chosen]);
  }

 private:
  void read(std::span<const ReplicaId> among, const FleetView& fleet) {
    given_tokens_.resize(fleet.num_replicas(), 0);
    load_.clear();
    cached_.clear();
    for (const ReplicaId replica : among) {
      load_.push_back(outstanding(fleet, replica));
      cached_.push_back(fleet.cached_tokens(replica));
    }
  }

  [[nodiscard]] bool is_balanced() const {
    const auto [least, most] = std::minmax_element(load_.begin(), load_.end());
    return *most - *least <= abs_threshold_ || static_cast<double>(*most) <= rel_threshold_ * static_cast<double>(*least);
  }

  [[nodiscard]] std::size_t by_load() const {
    return static_cast<std::size_t>(std::min_element(load_.begin(), load_.end()) - load_.begin());
  }

  // Ties: less loaded, then first.
  [[nodiscard]] std::size_t by_content(const Ask& ask) const {
    const auto given = [&](std::size_t i) { return given_tokens_[index(ask.among[i])]; };
    std::size_t most = 0, emptiest = 0;
    for (std::size_t i = 1; i < cached_.size(); ++i) {
      if (cached_[i] > cached_[most] || (cached_[i] == cached_[most] && load_[i] < load_[most])) most = i;
      if (given(i) < given(emptiest)) emptiest = i;
    }
    const bool holds_enough = static_cast<double>(cached_[most]) > cache_threshold_ * ask.request.prompt_tokens;
    return holds_enough ? most : emptiest;
  }

  double cache_threshold_;
  std::int64_t abs_threshold_;
  double rel_threshold_;
  std::vector<std::int64_t> given_tokens_;  // by replica: prompt tokens sent that it lacked
  std::vector<std::int64_t> load_, cached_;
};

KVLAB_REGISTER(Dispatcher, PrefixAffinity, "prefix_affinity", "the replica that caches most of the prompt, while loads are balanced",
               "SGLang router, cache_aware policy (Zheng et al. 2023, arXiv:2312.07104)");

// Algorithm 1; early rejection: section 7. Not modelled: prompts spread over several instances.
class MooncakeConductor final : public Dispatcher {
 public:
  explicit MooncakeConductor(Params& p)
      : ttft_limit_(limit(p, "ttft_ms", "a request with a longer expected time to first token is rejected; 0: none is")),
        tbt_limit_(limit(p, "tbt_ms", "a request that would make decode steps longer than this is rejected; 0: none is")),
        early_rejection_(p.choice<EarlyRejection>("early_rejection",
                                                  {{"none", EarlyRejection::kNone},
                                                   {"by_current_load", EarlyRejection::kByCurrentLoad},
                                                   {"by_predicted_load", EarlyRejection::kByPredictedLoad}},
                                                  EarlyRejection::kByPredictedLoad,
                                                  "tbt_ms is checked when the prompt has been computed; at arrival as well; at arrival "
                                                  "alone, with the decode load expected when the prompt will have been computed")),
        decode_s_(to_s(p.seconds("decode_s", 10, 0.001, 1e6, "by_predicted_load: every request is taken to decode for so long"))),
        fetch_ratio_(p.optional<double>("fetch_ratio", 1.5, 1, 1e9,
                                        "a prefix of another instance's store is fetched if it is more than so many times as long as the "
                                        "instance's own (kvcache_balancing_threshold)")),
        pace_tokens_(p.optional<std::int32_t>(
            "pace_tokens", 2048, 1, 1 << 20, "the queue of a prefill instance is taken to move at the pace of a step of so many tokens")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    return ask.stage == Stage::kPrefill ? arrive(ask, fleet) : go_on(ask, fleet);
  }

 private:
  enum class EarlyRejection : std::uint8_t { kNone, kByCurrentLoad, kByPredictedLoad };
  static constexpr const char* kTtft = "its expected time to first token exceeds ttft_ms";
  static constexpr const char* kTbt = "the expected time between tokens exceeds tbt_ms";

  static double limit(Params& p, const std::string& key, const std::string& meaning) {
    return to_s(p.milliseconds(key, 0, 0, 1e9, meaning));
  }

  struct DecodeLoad {
    double rows = 0, tokens = 0;
  };

  Placement arrive(const Ask& ask, const FleetView& fleet) {
    prompt_tokens_ += ask.request.prompt_tokens;
    ++num_prompts_;
    find_stored(fleet);
    const auto [prefill, best] = least_with(ask.among, [&](ReplicaId replica) { return first_token_on(ask, fleet, replica); });
    const double ttft = best.seconds;
    if (ttft_limit_ > 0 && ttft > ttft_limit_) return Placement::reject(kTtft);
    if (tbt_limit_ > 0 && early_rejection_ != EarlyRejection::kNone) {
      const double ahead = early_rejection_ == EarlyRejection::kByPredictedLoad ? ttft : 0;
      if (least_step_seconds(ask, fleet, prefill, ahead) > tbt_limit_) return Placement::reject(kTbt);
    }
    return best.from == kNoReplica ? Placement::send(prefill) : Placement::send_fetching(prefill, best.from);
  }

  Placement go_on(const Ask& ask, const FleetView& fleet) const {
    const auto [decode, least] = least_with(ask.among, [&](ReplicaId replica) {  // seconds of a step, and requests
      return std::pair(step_seconds(ask, fleet, replica, load_now(fleet, replica)), outstanding(fleet, replica));
    });
    const bool is_checked = tbt_limit_ > 0 && early_rejection_ != EarlyRejection::kByPredictedLoad;
    return is_checked && least.first > tbt_limit_ ? Placement::reject(kTbt) : Placement::send(decode);
  }

  // ---- prefill ----

  // With the longest prefix of the prompt.
  void find_stored(const FleetView& fleet) {
    stored_.clear();
    holders_.clear();
    longest_ = 0;
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i) {
      const std::int64_t tokens = fleet.stored_tokens(ReplicaId{i});
      stored_.push_back(tokens);
      if (tokens > longest_) holders_.clear();
      longest_ = std::max(longest_, tokens);
      if (tokens > 0 && tokens == longest_) holders_.push_back(ReplicaId{i});
    }
  }

  // At least one token is computed.
  [[nodiscard]] std::int64_t local_prefix(const Ask& ask, const FleetView& fleet, ReplicaId replica) const {
    const std::int64_t found = std::max(fleet.cached_tokens(replica), stored_[index(replica)]);
    return std::min<std::int64_t>(found, std::max(0, ask.request.prompt_tokens - 1));
  }

  [[nodiscard]] double queue_seconds(const FleetView& fleet, ReplicaId replica) const {
    const double pace = fleet.prefill_seconds(replica, pace_tokens_, 0) / pace_tokens_;
    return static_cast<double>(fleet.load(replica).outstanding_tokens) * pace / fleet.num_ranks(replica);
  }

  struct FirstToken {
    double seconds = 0;
    std::int64_t load = 0;
    ReplicaId from = kNoReplica;
    bool operator<(const FirstToken& o) const { return std::pair(seconds, load) < std::pair(o.seconds, o.load); }
  };

  // Algorithm 1: queue, prompt, and transfer if fetch_ratio allows.
  [[nodiscard]] FirstToken first_token_on(const Ask& ask, const FleetView& fleet, ReplicaId replica) const {
    const std::int64_t own = local_prefix(ask, fleet, replica), all = ask.request.prompt_tokens;
    const std::int64_t best = std::min(longest_, std::max<std::int64_t>(0, all - 1));
    FirstToken choice{queue_seconds(fleet, replica), fleet.load(replica).outstanding_tokens};
    if (!fleet.has_store(replica) || static_cast<double>(best) <= fetch_ratio_ * static_cast<double>(own)) {
      choice.seconds += fleet.prefill_seconds(replica, all - own, own);
      return choice;
    }
    const auto fetch = [&](ReplicaId from) { return fleet.fetch_seconds(from, replica, best - own); };
    choice.from = least_of(std::span<const ReplicaId>(holders_), fetch);
    choice.seconds += fetch(choice.from) + fleet.prefill_seconds(replica, all - best, best);
    return choice;
  }

  // ---- decode ----

  // Includes its queue.
  [[nodiscard]] static DecodeLoad load_now(const FleetView& fleet, ReplicaId replica) {
    const ReplicaLoad load = fleet.load(replica);
    const std::int64_t blocks = load.used_blocks + fleet.queued_blocks(replica);
    return {static_cast<double>(load.waiting + load.running), static_cast<double>(blocks * fleet.view(replica, 0).block_tokens())};
  }

  // Present requests that will have decoded for less than decode_s, plus a share of arriving prompts.
  [[nodiscard]] DecodeLoad load_in(const FleetView& fleet, ReplicaId replica, double ahead, double arriving) const {
    const double mean_prompt = static_cast<double>(prompt_tokens_) / static_cast<double>(num_prompts_);
    DecodeLoad load{arriving, arriving * mean_prompt};
    std::int64_t seen = 0;
    const auto add = [&](const Request& r) {
      ++seen;
      const double decoded = r.first_token == kNever ? 0 : to_s(fleet.now() - r.first_token);
      if (decoded + ahead >= decode_s_) return;
      load.rows += 1;
      load.tokens += r.known_tokens();
    };
    for (std::uint32_t rank = 0; rank < fleet.num_ranks(replica); ++rank) {
      const ReplicaView& view = fleet.view(replica, rank);
      for (const RequestId r : view.running()) add(view.info(r));
      for (std::uint32_t i = 0; i < view.num_waiting(); ++i) add(view.info(view.waiting(i)));
    }
    const auto unseen = static_cast<double>(outstanding(fleet, replica) - seen);
    if (ahead < decode_s_) {
      load.rows += unseen;
      load.tokens += unseen * mean_prompt;
    }
    return load;
  }

  [[nodiscard]] double arriving_in(const FleetView& fleet, double ahead) const {
    double sum = 0;
    int instances = 0;
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i) {
      const ReplicaId replica{i};
      if (fleet.roles(replica).decode) {
        ++instances;
        continue;
      }
      const double queue = queue_seconds(fleet, replica);
      const double begin = std::max(0.0, ahead - decode_s_), end = std::min(ahead, queue);
      if (end > begin) sum += static_cast<double>(outstanding(fleet, replica)) * (end - begin) / queue;
    }
    return instances == 0 ? 0 : sum / instances;
  }

  // Includes the new request.
  [[nodiscard]] static double step_seconds(const Ask& ask, const FleetView& fleet, ReplicaId replica, const DecodeLoad& load) {
    const std::int64_t ranks = fleet.num_ranks(replica);
    const auto rows = static_cast<std::int64_t>(load.rows) + 1, tokens = static_cast<std::int64_t>(load.tokens) + ask.request.prompt_tokens;
    return fleet.decode_seconds(replica, ceil_div(rows, ranks), ceil_div(tokens, ranks));
  }

  // An instance that takes both stages decodes its own prompts.
  [[nodiscard]] double least_step_seconds(const Ask& ask, const FleetView& fleet, ReplicaId prefill, double ahead) {
    decode_.clear();
    for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i)
      if (fleet.roles(ReplicaId{i}).decode) decode_.push_back(ReplicaId{i});
    if (fleet.roles(prefill).decode) decode_ = {prefill};
    if (decode_.empty()) return 0;
    const double arriving = ahead > 0 ? arriving_in(fleet, ahead) : 0;
    return least_with(decode_,
                      [&](ReplicaId replica) {
                        return step_seconds(ask, fleet, replica,
                                            ahead > 0 ? load_in(fleet, replica, ahead, arriving) : load_now(fleet, replica));
                      })
        .second;
  }

  double ttft_limit_, tbt_limit_;  // s
  EarlyRejection early_rejection_;
  double decode_s_, fetch_ratio_;
  std::int32_t pace_tokens_;
  std::int64_t prompt_tokens_ = 0, num_prompts_ = 0;  // so far
  std::vector<ReplicaId> decode_;
  std::vector<std::int64_t> stored_;  // by replica: prompt tokens in its store
  std::int64_t longest_ = 0;
  std::vector<ReplicaId> holders_;
};

KVLAB_REGISTER(Dispatcher, MooncakeConductor, "mooncake",
               "the earliest expected first token, the shortest expected decode step, early rejection",
               "Mooncake, Qin et al. 2024, arXiv:2407.00079");

}  // namespace

}  // namespace kvlab
