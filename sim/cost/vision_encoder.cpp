#include "sim/cost/vision_encoder.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/ceil_div.h"
#include "base/checked_time.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"

namespace kvlab {

namespace {

constexpr std::int64_t kBytes = 2;  // per weight and activation
constexpr std::int64_t kColours = 3;
constexpr const char* kLongPass = "a pass of the vision encoder ends later than that ('images' and the rates of the hardware)";

// Sums consecutive operations on one GPU. Real-valued work is exact below 2^53.
class Pass {
 public:
  explicit Pass(const HardwareSpec& hardware)
      : hardware_(hardware),
        ps_per_flop_(kPsPerSecond / hardware.reached_flops(Dtype::kBf16)),
        ps_per_byte_(kPsPerSecond / (hardware.memory_bytes_per_s * hardware.bandwidth_frac)) {}

  // `tokens` rows by `weights` weights; `widths`: activations read and written per row.
  void linear(double tokens, double weights, double widths, double times) {
    add(2 * tokens * weights, (weights + tokens * widths) * kBytes, hardware_.linear_floor(Dtype::kBf16), times);
  }
  void attention(double tiles, double patches, double hidden, double times) {
    add(4 * tiles * patches * patches * hidden, 4 * tiles * patches * hidden * kBytes, hardware_.attention_floor_ns, times);
  }
  void elementwise(double activations, double times) { add(0, activations * kBytes, hardware_.launch_ns, times); }

  [[nodiscard]] StepCost cost() const {
    constexpr double kMost = 9e18;
    if (flops_ > kMost || bytes_ > kMost) fail_clock(kLongPass);
    StepCost cost;
    cost.flops = static_cast<std::int64_t>(flops_);
    cost.bytes = static_cast<std::int64_t>(bytes_);
    cost.add(CostPart::kLinear, Footing::kRoofline, round_time(ps_, kLongPass));
    return cost;
  }

 private:
  void add(double flops, double bytes, double floor_ns, double times) {
    ps_ += times * (std::max(flops * ps_per_flop_, bytes * ps_per_byte_) + floor_ns * 1e3);
    flops_ += flops * times;
    bytes_ += bytes * times;
  }

  const HardwareSpec& hardware_;
  double ps_per_flop_, ps_per_byte_;
  double ps_ = 0, flops_ = 0, bytes_ = 0;
};

VisionEncoder read_keys(Params& p) {
  constexpr std::int64_t kMost = 1 << 20, kMostParams = std::int64_t{1} << 36;
  VisionEncoder e;
  e.layers = p.required<std::int64_t>("layers", 1, 1000, "transformer layers");
  e.hidden = p.required<std::int64_t>("hidden", 1, kMost, "width of a layer");
  e.intermediate = p.required<std::int64_t>("intermediate", 1, kMost, "width inside the feed-forward part, which has two products");
  e.patches = p.required<std::int64_t>("patches", 1, kMost, "tokens of a tile, a class token included");
  e.patch_pixels = p.optional<std::int64_t>("patch_pixels", 14, 1, 1024, "side of a patch");
  e.projector_params = p.optional<std::int64_t>("projector_params", 0, 0, kMostParams, "weights between encoder and language model");
  e.projector_tokens = p.optional<std::int64_t>("projector_tokens", e.patches, 1, kMost, "tokens of a tile that pass these weights");
  return e;
}

VisionEncoder load_encoder(const std::string& name) {
  Params file(load_config(find_spec_file(name, profiles_folder() + "/encoders", "encoder")), std::make_shared<Choices>(),
              "encoder '" + name + "'");
  file.text("summary", "the encoder and the model that it belongs to");
  file.text("source", "where the figures are published");
  VisionEncoder encoder = read_keys(file);
  file.reject_unread();
  encoder.name = std::filesystem::path(name).stem().string();
  return encoder;
}

StepCost pass_cost(const VisionEncoder& e, const HardwareSpec& hardware, std::int64_t images) {
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double layers = real(e.layers), hidden = real(e.hidden), inner = real(e.intermediate), patches = real(e.patches);
  const double tiles = real(images) * real(e.tiles), tokens = tiles * patches;
  const double pixels = real(kColours * e.patch_pixels * e.patch_pixels);
  Pass pass(hardware);
  pass.linear(tokens, pixels * hidden, pixels + hidden, 1);
  pass.linear(tokens, 3 * hidden * hidden, 4 * hidden, layers);
  pass.attention(tiles, patches, hidden, layers);
  pass.linear(tokens, hidden * hidden, 2 * hidden, layers);
  pass.linear(tokens, hidden * inner, hidden + inner, 2 * layers);
  pass.elementwise(2 * tokens * inner, layers);
  pass.elementwise(3 * tokens * hidden, 2 * layers + 1);  // norms and sums
  if (e.projector_params > 0) pass.linear(tiles * real(e.projector_tokens), real(e.projector_params), 0, 1);
  return pass.cost();
}

}  // namespace

std::int64_t VisionEncoder::weight_bytes() const {
  const std::int64_t layer = 4 * hidden * hidden + 2 * hidden * intermediate;
  const std::int64_t embedding = (kColours * patch_pixels * patch_pixels + patches) * hidden;
  return (layers * layer + embedding + projector_params) * kBytes;
}

VisionEncoder read_vision_encoder(Params& p, const std::string& key) {
  if (!p.has(key)) p.fail("missing key '" + key + "': a name in profiles/encoders, or '{layers, hidden, intermediate, patches}'");
  Params own = p.child_or_text(key, "name", "encoder");
  if (own.has("name")) {
    const std::string name = own.text("name", "a vision encoder in profiles/encoders, or a file");
    own.reject_unread();
    return own.reading("name", [&] { return load_encoder(file_or_name(own, name)); });
  }
  VisionEncoder encoder = read_keys(own);
  own.reject_unread();
  encoder.name = "given";
  return encoder;
}

StepCost encode_cost(const VisionEncoder& encoder, const HardwareSpec& hardware, std::int64_t images, int gpus) {
  StepCost cost = pass_cost(encoder, hardware, ceil_div(images, std::int64_t{gpus}));
  if (gpus == 1) return cost;
  cost.flops = pass_cost(encoder, hardware, images).flops;
  cost.bytes *= gpus;
  return cost;
}

EncodeWork encode_work(const VisionEncoder& encoder, const HardwareSpec& hardware, std::int64_t images) {
  const StepCost cost = encode_cost(encoder, hardware, images);
  const double at_peak = std::max(static_cast<double>(cost.flops) / hardware.peak_flops(Dtype::kBf16),
                                  static_cast<double>(cost.bytes) / hardware.memory_bytes_per_s);
  EncodeWork work{cost.total, round_time(at_peak * kPsPerSecond, kLongPass), cost.flops, cost.bytes};
  work.at_peak = std::min(work.at_peak, work.time);
  return work;
}

}  // namespace kvlab
