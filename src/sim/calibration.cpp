#include "sim/calibration.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_fields.h"
#include "sim/extrapolate.h"
#include "sim/not_measured.h"

namespace molen::sim {
namespace {

// Version 2 added the calibration factor. Since version 3, costs are those of ops on a core of their own, and entries
// have cores. Version 4 added `gemm`. Since version 5, the costs of an op are without its epilogues, which have costs
// of their own. Since version 6, the features of an op are those of its own rows, and messages and the halves of
// backward are measured. Version 7 named the calibration factor, and fits an optimizer's matrices apart. Version 8
// added the factor's residual.
constexpr int kFormat = 8;

}  // namespace

std::string Conditions::text() const {
  return fmt::format("{} rank{} x {} thread{}, {}, {} kernels, {}", ranks, ranks == 1 ? "" : "s", threads,
                     threads == 1 ? "" : "s", compute, kernels, communicator);
}

arch::Kernels calibrated_kernels(DType compute) {
  return compute == DType::kF32   ? arch::Kernels::kFused
         : compute == DType::kF64 ? arch::Kernels::kReference
                                  : arch::Kernels::kAten;
}

std::string call_that_measures(const Conditions& c) {
  const arch::Kernels kernels = calibrated_kernels(dtype_from_name(c.compute));
  if (c.kernels != name_of(kernels))
    return fmt::format("`molen calibrate` measures {} with {} kernels alone", c.compute, name_of(kernels));
  const std::string options = fmt::format("--threads {} --compute {}", c.threads, c.compute);
  if (c.communicator == "mpi") return fmt::format("`mpirun -n {} molen calibrate {}` measures it", c.ranks, options);
  if (c.communicator != (c.ranks == 1 ? "self" : "threads"))
    return fmt::format("`molen calibrate` cannot measure {} over {}", counted(c.ranks, "rank"), c.communicator);
  return fmt::format("`molen calibrate --ranks {} {}` measures it", c.ranks, options);
}

Conditions conditions_of(const program::Setting& s, const std::string& communicator) {
  return {s.ranks(), s.threads, std::string(name_of(s.compute)), std::string(name_of(s.kernels)), communicator};
}

Result<MeasuredCosts> Calibration::find(const Conditions& wanted) const {
  std::string known;
  for (const Entry& e : entries) {
    if (e.conditions == wanted)
      return MeasuredCosts(e.costs, {e.cores.logical, wanted.ranks, wanted.threads}, wanted.communicator);
    known += "\n  " + e.conditions.text();
  }
  auto carried = extrapolate(*this, wanted);
  if (carried) return carried;
  return Failure{fmt::format("no measurement with {}, and no basis to predict it from ({}); {}; the calibration has:{}",
                             wanted.text(), carried.reason(), call_that_measures(wanted),
                             known.empty() ? " nothing" : known)};
}

MeasuredCosts Calibration::costs(const Conditions& wanted, std::string_view origin) const {
  auto found = find(wanted);
  if (!found) throw UsageError("{}: {}", origin, found.reason());
  return std::move(found).value();
}

bool Calibration::has(const Conditions& wanted) const {
  for (const Entry& e : entries)
    if (e.conditions == wanted) return true;
  return false;
}

void Calibration::replace(Entry entry) {
  std::erase_if(entries, [&](const Entry& e) { return e.conditions == entry.conditions; });
  entries.push_back(std::move(entry));
}

namespace {

int count_of(const Json& entry, const char* key, const std::string& origin) {
  const std::int64_t n = JsonFields(entry, origin).integer(key);
  if (n < 1 || n > 1 << 20) throw UsageError("{}: damaged: {} is {}", origin, key, n);
  return static_cast<int>(n);
}

Cores cores_of(const Json& entry, const std::string& origin) {
  const Json& cores = entry.at("cores");
  return {count_of(cores, "logical", origin), count_of(cores, "physical", origin),
          JsonFields(cores, origin).text("affinity")};
}

}  // namespace

Calibration parse_calibration(const Json& j, const std::string& origin) {
  Calibration c;
  try {
    if (JsonFields(j, origin).integer("format") != kFormat)
      throw UsageError("{}: a calibration of another version; delete it and run `molen calibrate` again", origin);
    c.host = j.at("host").get<std::string>();
    c.cpu = j.at("cpu").get<std::string>();
    c.created = j.at("created").get<std::string>();
    c.gemm = j.at("gemm").get<std::string>();
    for (const auto& e : j.at("entries"))
      c.entries.push_back(
          {{count_of(e, "ranks", origin), count_of(e, "threads", origin), e.at("compute").get<std::string>(),
            e.at("kernels").get<std::string>(), e.at("communicator").get<std::string>()},
           cores_of(e, origin),
           CostModel::from_json(e.at("costs"), origin)});
  } catch (const Json::exception& e) {
    throw UsageError("{}: not a calibration: {}", origin, e.what());
  }
  return c;
}

Calibration read_calibration(const fs::path& path) {
  return parse_calibration(read_json(path), path.string());
}

Json to_json(const Calibration::Entry& e) {
  return {{"ranks", e.conditions.ranks},
          {"threads", e.conditions.threads},
          {"compute", e.conditions.compute},
          {"kernels", e.conditions.kernels},
          {"communicator", e.conditions.communicator},
          {"cores", {{"logical", e.cores.logical}, {"physical", e.cores.physical}, {"affinity", e.cores.affinity}}},
          {"costs", e.costs.to_json()}};
}

Json to_json(const Calibration& c) {
  Json entries = Json::array();
  for (const auto& e : c.entries) entries.push_back(to_json(e));
  return {{"format", kFormat},    {"host", c.host}, {"cpu", c.cpu},
          {"created", c.created}, {"gemm", c.gemm}, {"entries", entries}};
}

void write_calibration(const fs::path& path, const Calibration& c) {
  if (path.has_parent_path()) make_directories(path.parent_path());
  write_file_atomic(path, to_json(c).dump(1) + "\n");
}

bool is_calibration(const std::string& cluster) {
  if (cluster.ends_with(".toml") || !fs::is_regular_file(cluster)) return cluster.ends_with(".json");
  return true;
}

}  // namespace molen::sim
