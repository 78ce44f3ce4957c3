#include <algorithm>
#include <tuple>
#include <vector>

#include "base/ceil_div.h"
#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

constexpr std::int32_t kFewestSeqs = 2048, kMostSeqs = 4096;  // SGLang's limits if unset

// SGLang's new_token_ratio.
class OutputShare {
 public:
  explicit OutputShare(Params& p) {
    const auto first =
        p.optional<double>("init_ratio", 0.7, 0, 1, "share of their remaining output that running requests are expected to emit, at first");
    const auto factor = p.optional<double>("conservativeness", 1, 0, 100, "factor of init_ratio (schedule_conservativeness)");
    const auto part = p.optional<double>("min_ratio_factor", 0.14, 0, 1, "where the share stops falling, as a part of the first one");
    const auto steps = p.optional<std::int32_t>("ratio_decay_steps", 600, 1, 1 << 24, "decode steps in which it falls from first to last");
    start_ = from_ = std::min(1.0, factor * first);
    least_ = start_ * part;
    fall_ = (start_ - least_) / steps;
  }

  [[nodiscard]] double now() const { return std::max(least_, from_ - fall_ * static_cast<double>(steps_)); }
  void fall(std::int64_t steps) { steps_ += steps; }
  void set(double share) {
    from_ = share;
    steps_ = 0;
  }
  void reset() { set(start_); }

 private:
  double start_ = 0, least_ = 0, fall_ = 0;  // fall_: per step
  double from_ = 0;
  std::int64_t steps_ = 0;
};

// SGLang v0.5.9 (Zheng et al. 2023, arXiv:2312.07104; python/sglang/srt/managers/schedule_policy.py, PrefillAdder, scheduler.py and
// schedule_batch.py, retract_decode). At most one prompt is cut.
class SgLang final : public Scheduler {
 public:
  explicit SgLang(Params& p)
      : chunk_tokens_(p.optional<std::int32_t>(
            "chunk_tokens", 8192, 0, 1 << 24,
            "most prompt tokens per step (chunked_prefill_size); 0: prompts are not cut. Default by GPU memory: 2048, 4096, 8192, 16384")),
        max_prefill_tokens_(p.optional<std::int32_t>("max_prefill_tokens", 16384, 1, 1 << 24,
                                                     "prompt tokens in a step from which on no further prompt enters it")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 0, 0, 1 << 20,
                                               "most running requests (max_running_requests); 0: 512 times the requests of max_model_len "
                                               "tokens that fit, from 2048 to 4096")),
        mixes_(p.flag("mixed_chunk", false, "whether decodes join a step of prompts (enable_mixed_chunk)")),
        share_(p),
        clip_tokens_(p.optional<std::int32_t>("clip_tokens", 4096, 1, 1 << 30, "most tokens of output that are expected of a request")),
        max_new_tokens_(p.optional<std::int32_t>("max_new_tokens", 0, 0, 1 << 30,
                                                 "output limit that every request states; 0: its true output length, as with ignore_eos")),
        margin_steps_(p.optional<std::int32_t>("retract_steps", 20, 0, 1 << 20,
                                               "steps that are added to the emitted tokens when a retraction sets the ratio")),
        room_steps_(p.optional<std::int32_t>("retract_room_steps", 1, 1, 1 << 20,
                                             "decode steps for which a retraction makes room; earlier versions: 20")),
        overlaps_(p.flag("overlap", true, "plan a step while the one before it computes (disable_overlap_schedule turns it off)")),
        largest_graph_(p.optional<std::int32_t>(
            "largest_graph_tokens", 256, 0, 1 << 20,
            "largest CUDA-graph size of a decode step (cuda_graph_max_bs); 0: eager mode. Default by GPU memory and tp: 8 to 512")) {}

  // Captured: 1, 2, 4, 8, 12, then every 8 to 256, every 16 to 512, every 32; steps with prompts use no graph.
  [[nodiscard]] std::int32_t padded_tokens(std::int32_t tokens) const override {
    if (!decodes_ || tokens > largest_graph_ || tokens <= 2) return tokens;
    const std::int32_t step = tokens <= 16 ? 4 : tokens <= 256 ? 8 : tokens <= 512 ? 16 : 32;
    return std::min(round_up(tokens, step), largest_graph_);
  }
  [[nodiscard]] std::int32_t largest_graph_tokens() const override { return largest_graph_; }
  [[nodiscard]] std::int32_t num_graphs() const override {
    const auto sizes = [&](std::int32_t from, std::int32_t to, std::int32_t step) {
      return std::max(0, (std::min(to, largest_graph_) - from) / step + (largest_graph_ >= from ? 1 : 0));
    };
    const std::int32_t small = sizes(1, 2, 1) + sizes(4, 12, 4);
    return small + sizes(16, 256, 8) + sizes(272, 512, 16) + sizes(544, 1 << 20, 32);
  }

  [[nodiscard]] int pipeline_depth() const override { return overlaps_ ? 2 : 1; }

  [[nodiscard]] StepBounds step_bounds(std::int32_t max_model_len) const override {
    const std::int32_t rows = max_num_seqs_ > 0 ? max_num_seqs_ : kMostSeqs;
    const std::int32_t prompts = chunk_tokens_ > 0 ? chunk_tokens_ : std::max(max_prefill_tokens_, max_model_len) + max_prefill_tokens_;
    return {rows, std::max(rows, prompts) + (mixes_ ? rows : 0)};
  }

  void plan(ReplicaView& view, StepPlan& plan) override {
    StepBuilder step{view, plan};
    decodes_ = false;
    if (view.running().empty()) {
      is_full_ = has_left_ = false;
      if (view.num_waiting() == 0) share_.reset();
    }
    prefill(step);
    if (!plan.is_empty()) {
      if (mixes_) join_decodes(step);
      return;
    }
    decode(step);
    while (plan.is_empty() && is_stuck(view)) {
      retract_one(step);
      prefill(step);
    }
    if (plan.is_empty() && view.running().empty()) prefill(step);
  }

  void on_repeat(std::int64_t plans) override { share_.fall(plans); }
  void on_finish(RequestId /*r*/) override { has_left_ = true; }

  [[nodiscard]] Horizon stable_for(const ReplicaView& view) const override {
    return decodes_ && (is_full_ || view.num_waiting() == 0) ? Horizon::whatever_is_cached() : Horizon::none();
  }

 private:
  struct Room {
    std::int32_t input = 0, chunk = 0;  // tokens
    double reserved = 0;                // free tokens already claimed
    std::int32_t decodes = 0;

    void take(std::int32_t tokens, double output) {
      input -= tokens;
      chunk -= tokens;
      reserved += output;
    }
  };

  static bool is_decoding(const ReplicaView& view, RequestId r) {
    const Request& info = view.info(r);
    return info.output_tokens + info.in_flight_tokens > 0 && view.needed_tokens(r) <= 1;
  }
  [[nodiscard]] std::int32_t needed(const ReplicaView& view, RequestId r) const {
    return overlaps_ ? view.needed_tokens(r) : tokens_at_rest(view, r);
  }
  [[nodiscard]] double output_to_come(const Request& r) const {
    return std::min(std::max(r.output_limit, max_new_tokens_) - r.output_tokens, clip_tokens_);
  }
  [[nodiscard]] static double free_tokens(const ReplicaView& view) { return static_cast<double>(view.free_blocks()) * view.block_tokens(); }
  [[nodiscard]] std::int32_t most_seqs(const ReplicaView& view) const {
    if (max_num_seqs_ > 0) return max_num_seqs_;
    const double whole = static_cast<double>(view.num_blocks()) * view.block_tokens() / view.max_model_len();
    return static_cast<std::int32_t>(std::clamp(whole * 512, double{kFewestSeqs}, double{kMostSeqs}));
  }

  void prefill(StepBuilder& step) {
    const ReplicaView& view = step.view;
    if (has_cut_) has_cut_ = last_begun(view) != kNoRequest;
    const bool admits = !is_full_ && view.num_waiting() > 0;
    if (!has_cut_ && !admits) return;
    Room room = room_of(view);
    if (has_cut_) continue_prompts(step, room);
    if (admits) admit_waiting(step, room);
  }

  [[nodiscard]] Room room_of(const ReplicaView& view) const {
    Room room{max_prefill_tokens_, chunk_tokens_ > 0 ? chunk_tokens_ : 1 << 30, 0, 0};
    for (const RequestId r : view.running()) {
      if (!is_decoding(view, r)) continue;
      room.reserved += share_.now() * output_to_come(view.info(r));
      if (mixes_) ++room.decodes;
    }
    room.input -= room.decodes;
    if (chunk_tokens_ > 0) room.chunk -= room.decodes;
    room.reserved += room.decodes;
    return room;
  }

  void continue_prompts(StepBuilder& step, Room& room) const {
    for (const RequestId r : step.view.running())
      if (!is_decoding(step.view, r)) continue_prompt(step, r, room);
  }

  // Waits if its next chunk has no room.
  void continue_prompt(StepBuilder& step, RequestId r, Room& room) const {
    ReplicaView& view = step.view;
    const std::int32_t left = needed(view, r);
    std::int32_t m = std::min(left, room.chunk);
    const double spare = free_tokens(view) - room.reserved;
    if (spare >= 1 && spare < m) m = static_cast<std::int32_t>(spare);
    if (m <= 0 || !view.try_allocate(r, m)) return;
    step.add(r, m);
    room.take(m, m == left ? output_to_come(view.info(r)) : 0);
  }

  void admit_waiting(StepBuilder& step, Room& room) {
    ReplicaView& view = step.view;
    bool no_memory = false;
    const auto is_full = [&] { return num_running(view) >= most_seqs(view); };
    const auto try_admit = [&](RequestId r) {
      const Readiness readiness = ready_to_admit(view, r);
      if (readiness == Readiness::kLater) return Admission::kLater;
      if (readiness == Readiness::kReady && view.info(r).computed_tokens > 0) return let_return(step, r, room);
      const Entry entry = readiness == Readiness::kReady ? admit(step, r, room) : Entry::kNoMemory;
      no_memory = entry == Entry::kNoMemory;
      return entry == Entry::kAdmitted ? Admission::kLeft : Admission::kStop;
    };
    const WaitingWalk walk = walk_waiting(view, is_full, try_admit);
    const bool is_used_up = step.num_requests() > 0 && free_tokens(view) <= room.reserved;
    is_full_ = (no_memory || is_used_up || walk.end == WaitingWalk::End::kFull) && walk.is_settled() && !view.running().empty();
  }

  Admission let_return(StepBuilder& step, RequestId r, Room& room) {
    step.view.admit(r);
    if (!is_decoding(step.view, r)) {
      has_cut_ = true;
      continue_prompt(step, r, room);
    }
    return Admission::kLeft;
  }

  enum class Entry : std::uint8_t { kAdmitted, kNoMemory, kNoTokens };

  Entry admit(StepBuilder& step, RequestId r, Room& room) {
    ReplicaView& view = step.view;
    const bool is_alone = view.running().empty();  // more room never comes
    if (!is_alone && free_tokens(view) <= room.reserved) return Entry::kNoMemory;
    if (room.input <= 0 || room.chunk <= 0) return Entry::kNoTokens;
    const std::int32_t left = view.info(r).known_tokens() - view.lookup(r);
    const double output = output_to_come(view.info(r));
    const double all = static_cast<double>(view.blocks_needed(r, left)) * view.block_tokens() + output;
    if (!is_alone && all >= free_tokens(view) - room.reserved) return Entry::kNoMemory;
    if (left >= room.input && step.num_requests() > 0) return Entry::kNoTokens;
    std::int32_t m = left;
    if (left > room.chunk) m = whole_blocks(view, room.chunk);
    if (m <= 0 && step.num_requests() > 0) return Entry::kNoTokens;
    if (m <= 0) m = room.chunk;  // chunk below a block
    if (!view.try_allocate(r, m)) return Entry::kNoMemory;
    view.admit(r);
    step.add(r, m);
    has_cut_ = has_cut_ || m < left;
    room.take(m, m == left ? output : 0);
    return Entry::kAdmitted;
  }

  static std::int32_t whole_blocks(const ReplicaView& view, std::int32_t tokens) { return tokens - tokens % view.block_tokens(); }

  // Decodes without a block wait.
  void join_decodes(StepBuilder& step) const {
    const std::int32_t prompts = step.num_requests();
    for (const RequestId r : step.view.running()) {
      const auto end = step.plan.entries.begin() + prompts;
      if (std::any_of(step.plan.entries.begin(), end, [&](const StepEntry& e) { return e.request == r; })) continue;
      if (is_decoding(step.view, r) && needed(step.view, r) == 1 && step.view.try_allocate(r, 1)) step.add(r, 1);
    }
  }

  void decode(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto done = static_cast<std::ptrdiff_t>(step.plan_decodes());
    order_.assign(view.running().begin() + done, view.running().end());
    for (const RequestId r : order_) {
      if (!view.info(r).is_running || !is_decoding(view, r) || needed(view, r) != 1) continue;
      if (allocate_or_retract(step, r)) step.add(r, 1);
    }
    decodes_ = !step.plan.is_empty();
    if (step.num_preempted > 0) {
      share_.set(share_after_retraction(view));
    } else if (decodes_) {
      share_.fall(1);
    }
    if (has_left_ || step.num_preempted > 0) is_full_ = has_left_ = false;
  }

  // Cut prompts hold all memory.
  static bool is_stuck(const ReplicaView& view) {
    return num_running(view) > 1 &&
           std::none_of(view.running().begin(), view.running().end(), [&](RequestId r) { return view.info(r).in_flight_steps > 0; });
  }

  bool allocate_or_retract(StepBuilder& step, RequestId r) const {
    ReplicaView& view = step.view;
    while (!view.try_allocate(r, 1)) {
      do {
        retract_one(step);
      } while (num_running(view) > 1 && !has_room(view));
      if (!view.info(r).is_running) return false;
    }
    return true;
  }

  // After a retraction: room for room_steps_ decode steps.
  [[nodiscard]] bool has_room(ReplicaView& view) const {
    if (room_steps_ == 1) return true;
    std::int64_t blocks = 0;
    for (const RequestId r : view.running()) blocks += is_decoding(view, r) ? view.blocks_needed(r, room_steps_) : 0;
    return blocks <= view.free_blocks();
  }

  // Fewest emitted tokens, then longest prompt, then last; a cut prompt if at most one request decodes.
  static void retract_one(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto rank = [&](RequestId r) {
      const Request& info = view.info(r);
      return std::make_tuple(!is_decoding(view, r), info.output_tokens, -info.prompt_tokens);
    };
    RequestId worst = view.running().front();
    int decoding = 0;
    for (const RequestId r : view.running()) {
      decoding += is_decoding(view, r) ? 1 : 0;
      if (rank(r) <= rank(worst)) worst = r;
    }
    const RequestId begun = last_begun(view);
    if (decoding == 1 && begun != kNoRequest) worst = begun;
    const RequestId victim = view.victim(worst);
    view.preempt(victim, Preemption::kRecompute, QueueEnd::kBack);
    step.drop(victim);
    ++step.num_preempted;
  }

  static RequestId last_begun(const ReplicaView& view) {
    const auto running = view.running();
    const auto found = std::find_if(running.rbegin(), running.rend(), [&](RequestId r) { return !is_decoding(view, r); });
    return found == running.rend() ? kNoRequest : *found;
  }

  [[nodiscard]] double share_after_retraction(const ReplicaView& view) const {
    double emitted = 0, all = 1;
    for (const RequestId r : view.running()) {
      if (!is_decoding(view, r)) continue;
      const Request& info = view.info(r);
      emitted += info.output_tokens + margin_steps_;
      all += std::max(info.output_limit, max_new_tokens_);
    }
    return std::min(1.0, emitted / all);
  }

  std::int32_t chunk_tokens_, max_prefill_tokens_, max_num_seqs_;
  bool mixes_;
  OutputShare share_;
  std::int32_t clip_tokens_, max_new_tokens_, margin_steps_, room_steps_;
  bool overlaps_;
  std::int32_t largest_graph_;
  bool is_full_ = false;
  bool has_left_ = false;
  bool has_cut_ = false;
  bool decodes_ = false;
  std::vector<RequestId> order_;
};

KVLAB_REGISTER(Scheduler, SgLang, "sglang", "prompts before decodes, admission by expected output, retraction of the youngest outputs",
               "SGLang v0.5.9; Zheng et al. 2023, arXiv:2312.07104");

}  // namespace

}  // namespace kvlab
