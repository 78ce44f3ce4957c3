#include "app/runs/plan/lent_footprint.h"

#include <mutex>
#include <utility>
#include <vector>

namespace kvlab {

namespace {

struct Shelf {
  std::mutex mutex;
  std::vector<std::unique_ptr<Footprint>> free;
  std::function<std::unique_ptr<Footprint>()> make;

  std::unique_ptr<Footprint> take() {
    {
      const std::lock_guard lock(mutex);
      if (!free.empty()) {
        std::unique_ptr<Footprint> last = std::move(free.back());
        free.pop_back();
        return last;
      }
    }
    return make();
  }
  void put(std::unique_ptr<Footprint> footprint) {
    const std::lock_guard lock(mutex);
    free.push_back(std::move(footprint));
  }
};

class Lent final : public Footprint {
 public:
  explicit Lent(std::shared_ptr<Shelf> shelf) : shelf_(std::move(shelf)), own_(shelf_->take()) {}
  ~Lent() override { shelf_->put(std::move(own_)); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  FootprintStep step(const SeqState& seq) override { return own_->step(seq); }
  void charge(std::span<SeqState> batch, PolicyWork& work) override { own_->charge(batch, work); }
  std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) override {
    return own_->pages_at_end(prompt_tokens, seen_tokens);
  }
  [[nodiscard]] bool keeps_everything() const override { return own_->keeps_everything(); }
  [[nodiscard]] bool is_steady_in_decode() const override { return own_->is_steady_in_decode(); }
  [[nodiscard]] bool looks_ahead() const override { return own_->looks_ahead(); }
  std::int64_t decode_run(const SeqState& seq, std::int64_t most, std::vector<FootprintStep>& steps) override {
    return own_->decode_run(seq, most, steps);
  }
  void charge_ahead(std::span<const SeqState> batch, std::span<const std::vector<FootprintStep>> runs, std::int64_t steps,
                    DecodeAhead& ahead) override {
    own_->charge_ahead(batch, runs, steps, ahead);
  }
  [[nodiscard]] bool returns_pages() const override { return own_->returns_pages(); }
  [[nodiscard]] bool shares_prefixes() const override { return own_->shares_prefixes(); }
  [[nodiscard]] std::int32_t fresh_tokens() const override { return own_->fresh_tokens(); }
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const override { return own_->exceeds_budget(prompt_tokens); }
  [[nodiscard]] bool unnamed_rest() const override { return own_->unnamed_rest(); }
  [[nodiscard]] std::vector<std::int32_t> rows_of(std::int32_t pattern) const override { return own_->rows_of(pattern); }
  std::int32_t pattern_of(const std::vector<std::int32_t>& rows) override { return own_->pattern_of(rows); }
  [[nodiscard]] OnPreempt on_preempt() const override { return own_->on_preempt(); }

 private:
  std::shared_ptr<Shelf> shelf_;
  std::unique_ptr<Footprint> own_;
};

}  // namespace

std::function<std::unique_ptr<Footprint>()> lending(std::function<std::unique_ptr<Footprint>()> make) {
  auto shelf = std::make_shared<Shelf>();
  shelf->make = std::move(make);
  return [shelf] { return std::make_unique<Lent>(shelf); };
}

}  // namespace kvlab
