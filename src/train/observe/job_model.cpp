#include "train/observe/job_model.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"
#include "energy/machine.h"
#include "launch/gather_texts.h"

namespace molen::train {
namespace {

Json describe_parts(const energy::PowerModel& model, const std::string& host_name) {
  Json scopes = Json::object(), unavailable = Json::object();
  for (const auto& part : model.parts())
    scopes[part->figures().scope] = {
        {"summed", part->counted}, {"share", part->share()}, {"figures", replace_invalid_utf8(part->figures().source)}};
  for (const auto& u : model.unavailable()) unavailable[u.scope] = replace_invalid_utf8(u.reason);
  return {{"name", host_name}, {"scopes", scopes}, {"unavailable", unavailable}};
}

}  // namespace

JobModel::JobModel(comm::Communicator& world, std::unique_ptr<energy::PowerModel> model, const std::string& host_name)
    : world_(world),
      model_(std::move(model)),
      description_({{"scopes", Json::object()}, {"unavailable", Json::object()}}) {
  std::vector<Json> hosts;
  for (const std::string& text : launch::gather_texts(world, model_ ? describe_parts(*model_, host_name).dump() : ""))
    if (!text.empty()) hosts.push_back(Json::parse(text));
  for (const Json& host : hosts) {
    for (const auto& [scope, part] : host["scopes"].items()) {
      ++scopes_[scope];
      if (part["summed"].get<bool>()) summed_.insert(scope);
      Json& described = description_["scopes"][scope];
      if (described.is_null()) described = part;
      described["hosts"] = scopes_[scope];
    }
    for (const auto& [scope, reason] : host["unavailable"].items())
      description_["unavailable"][(hosts.size() > 1 ? host["name"].get<std::string>() + ": " : "") + scope] = reason;
  }
}

void JobModel::begin_step() {
  if (model_) model_->begin_step();
}

void JobModel::put(const energy::Modelled& own, std::vector<double>& sums) const {
  for (const auto& [scope, hosts] : scopes_) {
    const auto at = own.scopes.find(scope);
    const energy::Estimate e = at != own.scopes.end() && at->second ? *at->second : energy::Estimate{};
    for (const double value : {e.value, e.least, e.most}) sums.push_back(value);
    sums.push_back(at != own.scopes.end() && at->second ? 1.0 : 0.0);  // the hosts with a value, after the sum
  }
}

void JobModel::end_step(std::vector<double>& sums) {
  put(model_ ? model_->end_step() : energy::Modelled{}, sums);
}

energy::ModelledJoules JobModel::step(std::span<const double> summed) const {
  MOLEN_CHECK(summed.size() == values(), "{} sums of modelled joules, {} expected", summed.size(), values());
  energy::ModelledJoules job;
  std::size_t at = 0;
  for (const auto& [scope, hosts] : scopes_) {
    auto& estimate = job.scopes[scope];
    if (summed[at + 3] == static_cast<double>(hosts))
      estimate = energy::Estimate{summed[at], summed[at + 1], summed[at + 2]};
    at += 4;
  }
  job.summed = summed_;
  return job;
}

energy::ModelledJoules JobModel::so_far() {
  std::vector<double> sums;
  put(model_ ? model_->so_far() : energy::Modelled{}, sums);
  world_.all_reduce(sums.data(), static_cast<std::int64_t>(sums.size()), DType::kF64, comm::Reduce::kSum);
  return step(sums);
}

std::string union_of_cpus(const std::vector<std::string>& lists) {
  std::set<int> all;
  for (const std::string& list : lists) {
    const auto cpus = energy::parse_cpu_list(list);
    if (!cpus) throw UsageError("{}", cpus.reason());
    all.insert(cpus.value().begin(), cpus.value().end());
  }
  return fmt::format("{}", fmt::join(all, ","));
}

Json to_json(const energy::ModelledJoules& joules) {
  Json scopes = Json::object();
  for (const auto& [scope, e] : joules.scopes) scopes[scope] = e ? to_json(*e) : Json();
  return scopes;
}

Json to_json(const energy::Estimate& e) {
  return {{"joules", e.value}, {"least", e.least}, {"most", e.most}};
}

std::string model_note(const Json& described) {
  if (described["scopes"].empty()) return "energy.model estimates nothing: meters read all parts of each host";
  std::string parts;
  for (const auto& [scope, part] : described["scopes"].items())
    parts += fmt::format("{}{} ({})", parts.empty() ? "" : "; ", scope, part["figures"].get<std::string>());
  return "energy.model estimates, apart from what is measured: " + parts;
}

std::string modelled_text(const energy::ModelledJoules& joules) {
  std::string text;
  for (const auto& [scope, e] : joules.scopes)
    if (e)
      text +=
          fmt::format("{}{} {:.4g} J ({:.4g} to {:.4g})", text.empty() ? "" : ", ", scope, e->value, e->least, e->most);
  return text;
}

}  // namespace molen::train
