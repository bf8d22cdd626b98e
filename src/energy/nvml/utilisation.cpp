#include "energy/nvml/utilisation.h"

#include <algorithm>

#include "energy/nvml/library.h"

namespace molen::energy {
namespace {

// The longest period over which NVML averages, 1 s, and as much again. A reading says nothing of the time before.
constexpr double kFollowedS = 2.0;

class GpuPart : public ModelledPart {
 public:
  GpuPart(PartFigures figures, std::shared_ptr<NvmlLibrary> library, NvmlDevice device)
      : ModelledPart(std::move(figures), 1.0), library_(std::move(library)), device_(device) {}

 protected:
  Result<std::optional<Busy>> busy(double time_s) override {
    if (last_s_ && time_s - *last_s_ < kModelWindowS) return std::optional<Busy>();
    NvmlUtilisation busy{};
    if (const int error = library_->utilisation(device_, &busy); error != kNvmlSuccess)
      return Failure{fmt::format("nvmlDeviceGetUtilizationRates: {}", library_->why(error))};
    const bool followed = last_s_ && time_s - *last_s_ <= kFollowedS;
    last_s_ = time_s;
    return std::optional(Busy{std::min(1.0, 1e-2 * busy.gpu_percent), followed});
  }

 private:
  std::shared_ptr<NvmlLibrary> library_;
  NvmlDevice device_;
  std::optional<double> last_s_;
};

}  // namespace

GpuParts model_gpus(const PartFigures& figures, const NvmlOptions& options) {
  GpuParts found;
  const auto lacking = [&](const std::string& scope, const std::string& why) {
    found.unavailable.push_back({"model", scope, why});
  };
  auto loaded = NvmlLibrary::load(options.library);
  if (!loaded) return lacking("gpu", loaded.reason()), std::move(found);
  const auto& library = loaded.value();
  const auto visible = library->gpus(options.visible);
  if (!visible) return lacking("gpu", visible.reason()), std::move(found);
  for (std::size_t i = 0; i < visible.value().size(); ++i) {
    const NvmlGpu& gpu = visible.value()[i];
    PartFigures own = figures;
    own.scope = fmt::format("gpu{}", i);
    NvmlUtilisation busy{};
    if (!gpu.failure.empty()) {
      lacking(own.scope, gpu.failure);
    } else if (library->utilisation == nullptr) {
      lacking(own.scope, "this driver tells no utilisation");
    } else if (const int error = library->utilisation(gpu.device, &busy); error != kNvmlSuccess) {
      lacking(own.scope, fmt::format("nvmlDeviceGetUtilizationRates: {}", library->why(error)));
    } else {
      own.source += fmt::format(", for {}", gpu.name.empty() ? gpu.uuid : gpu.name);
      found.parts.push_back(std::make_unique<GpuPart>(std::move(own), library, gpu.device));
    }
  }
  return found;
}

}  // namespace molen::energy
