// Decode steps of Llama-3.1-8B's shape with random weights: a recorded graph against the sum of its kernels.
//   decode_bench [batch,context ...]     default: 1,4096 and 64,4096 (16 GB of weights, up to 34 GB of keys and values)
// `context` includes the new token.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "bench/decode/decode_step.h"
#include "kernels/device/cuda/events.h"

namespace kvlab {
namespace {

// Bytes read and written per second by copies of half a GiB.
double copy_rate(CudaContext& cuda) {
  constexpr std::int64_t kBytes = 512 << 20;
  const DeviceBuffer<std::uint8_t> from(kBytes), to(kBytes);
  CudaTimer timer;
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    timer.start(cuda.stream());
    for (int j = 0; j < 4; ++j) cuda::copy_on_device(to.data(), from.data(), kBytes, cuda.stream());
    timer.stop(cuda.stream());
    const double rate = 8.0 * static_cast<double>(kBytes) / timer.seconds();
    best = rate > best ? rate : best;
  }
  return best;
}

void print(std::int32_t batch, std::int32_t context, const DecodeStepTimes& t, double rate) {
  fmt::print("decode_step/bf16/b{}_n{}\n", batch, context);
  const double bytes = static_cast<double>(t.bytes);
  double sum = 0;
  for (const DecodeStepTimes::Kernel& k : t.kernels) {
    fmt::print("  {:<18} {:>4} launches {:>10.1f} us\n", k.name, k.launches, k.seconds * 1e6);
    sum += k.seconds;
  }
  fmt::print("  sum of kernels                   {:>10.1f} us\n", sum * 1e6);
  fmt::print("  graph                            {:>10.1f} us  {:.3f} of the sum (goal: 1.10 at most)\n", t.device_seconds * 1e6,
             t.device_seconds / sum);
  fmt::print("  kernels launched one by one      {:>10.1f} us  {:.3f}\n", t.plain_seconds * 1e6, t.plain_seconds / sum);
  fmt::print("  step as its caller sees it       {:>10.1f} us  {:.3f}\n", t.step_seconds * 1e6, t.step_seconds / sum);
  fmt::print("  {:.3f} GB per step: {:.1f} GB/s in the graph, {:.3f} of the copy rate of {:.1f} GB/s\n", bytes * 1e-9,
             bytes / t.device_seconds * 1e-9, bytes / t.device_seconds / rate, rate * 1e-9);
}

int run(int argc, char** argv) {
  if (num_gpus() == 0) throw InputError("decode_bench: " + why_no_gpu());
  CudaContext cuda;
  const double rate = copy_rate(cuda);
  fmt::print("{}, driver {}\n", cuda.gpu().name, cuda.gpu().driver);
  std::vector<std::string> sizes(argv + 1, argv + argc);
  if (sizes.empty()) sizes = {"1,4096", "64,4096"};
  for (const std::string& size : sizes) {
    int batch = 0, context = 0;
    if (std::sscanf(size.c_str(), "%d,%d", &batch, &context) != 2 || batch < 1 || context < 2)
      throw InputError("'" + size + "': a batch and a context are expected, such as 64,4096");
    print(batch, context, time_decode_step(llama_8b(), ElementType::kBf16, batch, context, 20, cuda), rate);
  }
  return 0;
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  try {
    return kvlab::run(argc, argv);
  } catch (const kvlab::InputError& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
