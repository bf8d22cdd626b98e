#include "measure/rates.h"

#include <sys/file.h>
#include <torch/headeronly/version.h>

#include <cmath>
#include <cstdlib>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/processor.h"
#include "measure/device_peak.h"
#include "measure/precision.h"

namespace molen::measure {
namespace {

constexpr int kFormat = 1;

// Returns the key of one entry of the file. Another processor, or another libtorch, multiplies at another rate.
std::string key_of(const std::string& conditions) {
  return fmt::format("{}, libtorch {}: {}", cpu_model(), TORCH_VERSION, conditions);
}

Json stored() {
  try {
    Json j = read_json(rates_file());
    if (j.at("format") == kFormat && j.at("rates").is_object()) return j;
  } catch (const std::exception&) {
  }
  return {{"format", kFormat}, {"rates", Json::object()}};
}

// Two processes that start together would, without the lock, each write the file without the other's rate.
template <class Change>
void change_rates(const Change& change) {
  const fs::path file = rates_file();
  if (file.empty()) return;
  try {
    make_directories(file.parent_path());
    const File lock = File::append(fs::path(file) += ".lock");
    ::flock(lock.descriptor(), LOCK_EX);
    Json j = stored();
    change(j["rates"]);
    write_file_atomic(file, j.dump(1) + "\n");
  } catch (const std::exception&) {
  }
}

std::string conditions_of(DType type, int threads) {
  program::Setting s;
  s.compute = type;
  s.threads = threads;
  return gemm_conditions(s, {});
}

}  // namespace

std::filesystem::path rates_file() {
  const auto set = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value && *value == '/' ? value : "";
  };
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "molen/rates.json";
  if (const std::string home = set("HOME"); !home.empty()) return fs::path(home) / ".cache/molen/rates.json";
  return {};
}

std::optional<Rate> stored_rate(const std::string& conditions) {
  if (rates_file().empty() || !fs::exists(rates_file())) return std::nullopt;
  try {
    const Json rate = stored().at("rates").at(key_of(conditions));
    const Rate found{rate.at("flops_per_s").get<double>(), rate.at("measured").get<std::string>()};
    if (found.flops_per_s > 0 && std::isfinite(found.flops_per_s)) return found;
  } catch (const std::exception&) {
  }
  return std::nullopt;
}

Rate store_rate(const std::string& conditions, double flops_per_s) {
  Rate rate{flops_per_s, utc_timestamp(wall_time()).substr(0, 10)};
  change_rates([&](Json& rates) {
    rates[key_of(conditions)] = {{"flops_per_s", rate.flops_per_s}, {"measured", rate.measured}};
  });
  return rate;
}

void forget_rate(const std::string& conditions) {
  change_rates([&](Json& rates) { rates.erase(key_of(conditions)); });
}

void forget_rates() {
  file_system().remove(rates_file());
}

plan::PrecisionRates precision_rates(int threads, int cuda_device) {
  if (cuda_device >= 0) return measure_precision(threads, cuda_device);
  const std::string fp32 = conditions_of(DType::kF32, threads), bf16 = conditions_of(DType::kBF16, threads);
  const auto a = stored_rate(fp32), b = stored_rate(bf16);
  if (a && b) return {a->flops_per_s * 1e-9, b->flops_per_s * 1e-9, a->measured};
  // A kept rate stays, because the MFU of earlier runs was computed with it.
  const plan::PrecisionRates rates = measure_precision(threads);
  const Rate kept_fp32 = a ? *a : store_rate(fp32, rates.fp32 * 1e9);
  const Rate kept_bf16 = b ? *b : store_rate(bf16, rates.bf16 * 1e9);
  return {kept_fp32.flops_per_s * 1e-9, kept_bf16.flops_per_s * 1e-9, kept_fp32.measured};
}

}  // namespace molen::measure
