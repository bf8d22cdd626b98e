#include "train/observe/recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "arch/parts.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/host_name.h"
#include "base/median.h"
#include "cluster/site.h"
#include "measure/rates.h"
#include "program/ir/trace.h"
#include "program/text/text.h"
#include "sim/calibration.h"
#include "store/energy_ring.h"
#include "store/prometheus.h"
#include "store/run_directory.h"
#include "store/tensorboard.h"
#include "store/trace.h"
#include "train/observe/emissions.h"
#include "train/observe/environment.h"
#include "train/observe/run_console.h"

namespace molen::train {

namespace {

constexpr double kGramsPerKwh = 1e3 * kJoulesPerKwh;  // one kg/J

Json figure_json(const cluster::Figure& figure, double unit) {
  return {{"value", figure.value * unit}, {"spread", figure.spread}, {"source", figure.source}};
}

Json site_json(const cluster::RunSite& site) {
  constexpr double kLitres = 1e3 * kJoulesPerKwh;  // l/kWh of m^3/J
  constexpr double kSecondsOfHour = 3600.0;
  const auto or_null = [](const std::optional<cluster::Figure>& figure, double unit) {
    return figure ? figure_json(*figure, unit) : Json();
  };
  return {{"name", site.name},
          {"country", site.country},
          {"pue", figure_json(site.pue, 1.0)},
          {"intensity_g_per_kwh", figure_json(site.intensity, kGramsPerKwh)},
          {"water_l_per_kwh", or_null(site.water, kLitres)},
          {"price_eur_per_kwh", or_null(site.price, kJoulesPerKwh)},
          {"market_intensity_g_per_kwh", or_null(site.market_intensity, kGramsPerKwh)},
          {"embodied_g_per_device_hour", or_null(site.embodied, 1e3 * kSecondsOfHour)},
          {"intensity_file", site.series ? Json(site.series->origin()) : Json()}};
}

}  // namespace

class Recorder::Impl {
 public:
  Impl(const Job& job, const JobEnergy& energy, std::int64_t total_steps, std::int64_t stop_step)
      : job_(job),
        energy_(energy),
        partial_(energy.coverage().partial()),
        console_(job, total_steps, stop_step),
        run_(run_directory(job.config), [this](const std::string& text) { console_.note(text); }),
        tensorboard_(run_.tensorboard(), host_name(), ::getpid()) {
    tokens_per_step_ = static_cast<double>(job.setting.global_batch * job.setting.sequence);
    model_flops_ = arch::model_flops(job.arch, job.setting.global_batch * job.setting.sequence, job.setting.sequence,
                                     job.options.mfu)
                       .value;
    const double opened_s = wall_time() - 1e-9 * static_cast<double>(now_ns() - energy.opened_ns());
    if (const auto& site = job.config.energy.site)
      emissions_.emplace(cluster::find_site(*site), opened_s);
    else if (const auto& cluster = job.options.cluster; cluster && !sim::is_calibration(*cluster))
      emissions_.emplace(cluster::site_of(cluster::find(*cluster)), opened_s);
  }

  std::int64_t attempt() const { return run_.attempt(); }
  Json identity() const {
    return {{"id", run_.identity().id},
            {"name", run_.path().filename().string()},
            {"attempt", run_.attempt()},
            {"history", history()}};
  }
  void sync() { run_.sync(); }

  void begin(std::int64_t start_step, std::int64_t start_tokens, const MemoryPrediction& memory,
             const std::string& state_hash, double hardware_flops) {
    hardware_flops_ = hardware_flops;
    start_step_ = start_step;
    start_tokens_ = start_tokens;
    keep_config();
    keep([this, environment = describe_environment(job_)] { run_.write_environment(environment); });
    keep([this] { write_programs(); });
    Json start{{"step", start_step},
               {"from", job_.resume_from.value_or("")},
               {"state_hash", state_hash},
               {"arch", job_.arch.name},
               {"parameters", arch::num_parameters(job_.arch)},
               {"flops_formula", name_of(job_.options.mfu)},
               {"device_peak", measure::to_json(job_.peak)},
               {"ranks", job_.machine.ranks},
               {"communicator", job_.communicator},
               {"memory_arena_bytes", memory.arena.value},
               {"memory_base_bytes", memory.base.value},
               {"memory_workspace_bytes", memory.workspace.value},
               {"memory_other_bytes", memory.other.value}};
    start.update(describe_owner());
    run_.event(start_step > 0 ? "resume" : "start", start);
    console_.begin(start_step, memory, state_hash);
    begin_energy();
    if (start_step > 0 || run_.attempt() > 1) tensorboard_.session_start(start_step + 1, wall_time());
    tensorboard_.text("mfu/flops_formula",
                      fmt::format("{}: {}", name_of(job_.options.mfu), formula_of(job_.options.mfu)), start_step + 1,
                      wall_time());
    tensorboard_.text("mfu/device_peak", job_.peak.source, start_step + 1, wall_time());
  }

  void step(const StepRecord& r) {
    store::StepMetrics m;
    m.step = r.step;
    m.attempt = run_.attempt();
    m.wall_time_s = wall_time();
    m.loss = r.loss;
    m.grad_norm = r.grad_norm;
    m.lr = r.lr;
    if (r.router) {
      m.balance_loss = r.router->balance, m.z_loss = r.router->z;
      m.dropped_share = r.router->dropped_share;
    }
    m.loss_scale = r.loss_scale;
    if (r.loss_scale) m.skipped_steps = r.skipped_steps;
    m.tokens_total = r.tokens_total;
    m.step_s = r.step_s;
    m.tokens_per_s = tokens_per_step_ / r.step_s;
    m.tokens_per_s_per_device = m.tokens_per_s / job_.machine.ranks;
    m.flops_formula = name_of(job_.options.mfu);
    m.model_tflops_per_device = model_flops_ / r.step_s / job_.machine.ranks * 1e-12;
    if (job_.peak.flops_per_s) {
      m.mfu = *m.model_tflops_per_device * 1e12 / *job_.peak.flops_per_s;
      m.hfu = hardware_flops_ / r.step_s / *job_.peak.flops_per_s;
      ++(*m.hfu > 1.0 ? above_peak_ : within_peak_);
    }
    m.memory_peak_bytes = r.memory_peak;
    m.memory_planned_bytes = r.memory_planned;
    m.data_wait_s = r.data_wait_s;
    m.phase_s = r.phase_s;
    m.samples = {r.first_sample, r.last_sample};
    m.energy_j = r.energy.joules();
    if (r.energy.total_j) {
      step_j_.push_back(*r.energy.total_j);
      if (step_j_.size() > Predicted::kKept) step_j_.erase(step_j_.begin());
    }
    m.energy_source = r.energy.sources();
    m.energy_resolution_j = r.energy.resolutions();
    if (!r.energy.scopes.empty()) m.energy_resolution_j["total"] = r.energy.total_resolution_j;
    if (r.energy.total_j) m.j_per_token = *r.energy.total_j / tokens_per_step_;
    const Spent consumed = spent(r.energy.so_far_j);
    if (consumed.joules) m.kwh_total = *consumed.joules / kJoulesPerKwh;
    m.kg_co2e_total = consumed.kg;
    m.kwh_at_end = r.kwh_at_end, m.kg_co2e_at_end = r.kg_co2e_at_end;
    for (const auto& [scope, e] : r.energy.modelled.scopes) {
      auto& modelled = m.energy_model_j[scope];
      if (e) modelled = {e->value, e->least, e->most};
    }
    m.energy_coverage = partial_;
    m.policy_setting = r.policy_setting;
    run_.append(m);
    unread(r.step, r.energy);
    write_kept();
    telemetry([&] { to_tensorboard(m); });
    telemetry([&] { to_prometheus(m); });
    const auto modelled = r.energy.modelled.total();
    console_.step(m, r.skipped, modelled ? std::optional(modelled->value / r.step_s) : std::nullopt);
  }

  Spent spent(std::optional<double> of_attempt) {
    Spent all{{}, {}, undone_before_};
    if (!of_attempt && !before_.total_j && !(undone_before_ > 0.0)) return all;
    all.joules = of_attempt.value_or(0.0) + undone_before_ + before_.total_j.value_or(0.0);
    if (emissions_)
      all.kg = energy::sum(before_.spent_at_site, before_.spent_total_j > 0.0, at_site_so_far(of_attempt)).kg_co2e;
    return all;
  }

  const cluster::RunSite* site() const { return emissions_ ? &emissions_->site() : nullptr; }

  void set_length(std::int64_t total_steps, std::int64_t stop_step) {
    keep_config();
    console_.set_length(total_steps, stop_step);
  }

  void budget(const Json& event) {
    console_.note(event["text"].get<std::string>());
    run_.event("budget", event);
  }

  void trace(std::int64_t step, const std::vector<program::Expanded>& ops, const program::Timeline& timeline) {
    const double origin = timeline_end_;
    std::ranges::move(program::spans_of(ops, timeline, origin, step), std::back_inserter(spans_));
    const auto total_ns = static_cast<std::int64_t>(1e9 * timeline.total_s);
    for (const auto& point : energy_.power_between(timeline.start_ns, timeline.start_ns + total_ns))
      power_.push_back({point.scope + " (W)", origin + point.time_s, point.watts});
    timeline_end_ = origin + timeline.total_s;
    telemetry([&] { run_.write_trace(store::trace_json(spans_, power_)); });
  }

  void validation(std::int64_t step, const ValidationResult& v) {
    Json bits = Json::object();
    std::string text;
    for (const auto& [language, b] : v.bits_per_byte) {
      bits[language] = b;
      text += fmt::format("  {} {:.3f}", language, b);
    }
    Json sets = Json::array();
    for (std::size_t i = 0; i < v.sets.size(); ++i) {
      const HeldOut& one = v.sets[i];
      const std::string& path = job_.config.data.validation[i].path;
      sets.push_back(
          {{"path", path}, {"loss", one.loss}, {"tokens", one.tokens}, {"bits_per_byte", Json(one.bits_per_byte)}});
      if (v.sets.size() > 1) text += fmt::format("; {}: loss {:.4f}", path, one.loss);
    }
    run_.event("validation",
               {{"step", step}, {"loss", v.loss}, {"tokens", v.tokens}, {"bits_per_byte", bits}, {"sets", sets}});
    const double wall = wall_time();
    tensorboard_.scalar("validation_metrics/loss", v.loss, step, wall);
    for (const auto& [language, b] : v.bits_per_byte)
      tensorboard_.scalar("validation_metrics/bits_per_byte/" + language, b, step, wall);
    telemetry([&] { tensorboard_.flush(); });
    console_.note(fmt::format("validation after step {}: loss {:.4f} over {} tokens, bits per byte{}", step, v.loss,
                              v.tokens, text));
  }

  void noise_scale(std::int64_t step, const NoiseScale& scale) {
    const NoisePair& last = scale.pairs().back();
    const auto estimate = scale.estimate();
    const auto tokens = [](std::optional<double> value) { return value ? Json(*value) : Json(); };
    run_.event("noise_scale", {{"step", step},
                               {"small", {{"tokens", last.small_tokens}, {"grad_norm", last.small_norm}}},
                               {"large", {{"tokens", last.large_tokens}, {"grad_norm", last.large_norm}}},
                               {"measurements", scale.pairs().size()},
                               {"tokens", estimate ? Json(estimate->tokens) : Json()},
                               {"low", estimate ? tokens(estimate->low) : Json()},
                               {"high", estimate ? tokens(estimate->high) : Json()}});
    if (!estimate) {
      console_.note(fmt::format("noise scale after step {}: not yet told from the noise of {} measurements", step,
                                scale.pairs().size()));
      return;
    }
    tensorboard_.scalar("noise_scale/tokens", estimate->tokens, step, wall_time());
    telemetry([&] { tensorboard_.flush(); });
    const std::string interval =
        estimate->high ? fmt::format(" [{}, {}]", human_count(*estimate->low), human_count(*estimate->high)) : "";
    console_.note(fmt::format("noise scale after step {}: {} tokens{} from {} measurements; a batch has {}", step,
                              human_count(estimate->tokens), interval, estimate->measurements,
                              human_count(last.large_tokens)));
  }

  void checkpoint(std::int64_t step, const std::string& path, double seconds) {
    run_.event("checkpoint", {{"step", step}, {"path", path}, {"seconds", seconds}});
    console_.note(fmt::format("saved {} in {}", path, human(Seconds(seconds))));
  }

  void prediction(const Prediction& p, const MemoryPrediction& memory, std::int64_t planned,
                  std::optional<Bytes> touched, std::int64_t rss) {
    Json all = program::to_json(p.stages.front().value());
    all["memory_bytes"] = {{"planned", planned},
                           {"measured", touched ? Json(touched->value) : Json()},
                           {"process_predicted", memory.total().value},
                           {"process_measured", rss}};
    all["extrapolated"] = p.extrapolated.empty() ? Json() : Json(p.extrapolated);
    const std::optional<double> measured_j = step_j_.empty() ? std::nullopt : std::optional(median(step_j_));
    all["step_j"] = {{"predicted", p.step_j ? Json(*p.step_j) : Json()},
                     {"predicted_devices", p.devices_j ? Json(*p.devices_j) : Json()},
                     {"measured", measured_j ? Json(*measured_j) : Json()},
                     {"coverage", partial_}};
    all["later_stages"] = Json::array();
    for (std::size_t i = 1; i < p.stages.size(); ++i)
      all["later_stages"].push_back(p.stages[i] ? program::to_json(p.stages[i].value())
                                                : Json{{"failure", p.stages[i].reason()}});
    telemetry([&] { run_.write_prediction(all); });
    console_.prediction(p, measured_j, partial_);
  }

  void policy_begins(std::int64_t step, const Json& summary) {
    Json event{{"step", step}};
    for (const char* key : {"policy", "kind", "unit", "settings", "coverage", "budget_w"}) event[key] = summary.at(key);
    run_.event("policy_settings", event);
  }

  void policy(std::int64_t step, Json summary) {
    summary["step"] = step;
    const std::string text = summary["text"].get<std::string>();
    console_.note(fmt::format("energy policy {}: {}", summary["policy"].get<std::string>(), text));
    run_.event("policy", summary);
  }

  void note(const std::string& text) {
    run_.event("note", {{"text", text}});
    console_.note(text);
  }

  void end(std::int64_t step, std::int64_t tokens, const energy::EnergySoFar& used,
           const launch::Communication& communication, const std::string& reason) {
    // GEMMs are part of a step, so a step cannot be faster than they are: something slowed the measurement.
    if (above_peak_ > within_peak_ && !job_.peak.conditions.empty()) {
      measure::forget_rate(job_.peak.conditions);
      note(fmt::format(
          "most steps were faster than the GEMM rate allows ({}): MFU and HFU above are too high; a new run "
          "measures the rate again",
          job_.peak.source));
    }
    const energy::RunTotals all = totals_of(step, tokens, used);
    energy_lines(step, all, used);
    run_.event("stop", {{"step", step},
                        {"reason", reason},
                        {"communication", communication.axes()},
                        {"traffic", launch::to_json(communication.traffic())}});
    console_.end(step, reason, communication.text(), all.text(), phase_line(used.phases, energy_.coverage().summed),
                 modelled_text(used.modelled));
  }

  Json totals(std::int64_t step, std::int64_t tokens, const energy::EnergySoFar& used) {
    const energy::RunTotals all = totals_of(step, tokens, used);
    energy_lines(step, all, used);
    Json j{{"attempts", run_.attempt()}};
    j.update(energy::to_json(all));
    return j;
  }

  void restore_totals(const Json& totals, std::int64_t step_done, const std::string& origin) {
    before_ = energy::totals_from_json(totals, step_done, origin);
  }

  store::EnergyRingHead take_over_readings(std::int64_t step) {
    try {
      last_ = store::read_consumed(run_.path() / store::kEnergyRings, reading_problems_);
      if (last_ && last_->history != history()) last_.reset();  // of steps that the user has given up
    } catch (const Error& error) {                              // the directory cannot be read
      reading_problems_.emplace_back(error.what());
    }
    if (last_) {
      const double used_before = before_.total_j.value_or(0.0), spent_before = before_.spent_total_j;
      const double spent_before_s = before_.spent_s;
      before_.take_over(last_->spent.by_scope, last_->spent.total, last_->spent.seconds, last_->ended_at == step);
      // No checkpoint has these joules, so their times are not known either.
      const auto at_site = [&](double joules, double seconds) {
        return emissions_ ? emissions_->of_earlier(joules, seconds * job_.machine.ranks, wall_time())
                          : energy::AtSite{};
      };
      if (const double more = before_.spent_total_j - spent_before; more > 0.0)
        before_.spent_at_site =
            energy::sum(before_.spent_at_site, spent_before > 0.0, at_site(more, before_.spent_s - spent_before_s));
      if (const double used = before_.total_j.value_or(0.0) - used_before; used > 0.0)
        before_.kg_co2e =
            energy::sum({{}, before_.kg_co2e, {}, {}, {}, {}}, used_before > 0.0, at_site(used, 0.0)).kg_co2e;
    }
    undone_before_ = before_.undone_j();
    return {attempt(), history(), 1, {}, {before_.spent_j, before_.spent_total_j, before_.spent_s}};
  }
  void forget_earlier_readings() {
    try {
      store::remove_earlier_rings(run_.path() / store::kEnergyRings, run_.attempt());
    } catch (const Error& error) {  // the next attempt tries again
      console_.note(error.what());
    }
  }
  std::int64_t history() const { return run_.identity().current().history; }

 private:
  // Writes files that other programs read beside the metrics. A file that cannot be written is reported once and tried
  // again with the next step; the training goes on.
  template <class F>
  void telemetry(F&& write) {
    try {
      write();
    } catch (const IoError& error) {
      if (!std::exchange(telemetry_failed_, true))
        console_.note(fmt::format("{}; the run goes on, and tries again with each step", error.what()));
    }
  }

  // Writes a file that is written once. If it cannot be now, it is tried again with each step.
  void keep(std::function<void()> write) {
    kept_.push_back(std::move(write));
    write_kept();
  }
  void keep_config() {
    keep([this, toml = config::to_toml(job_.config)] { run_.write_config(toml); });
  }
  void write_kept() {
    std::erase_if(kept_, [this](const std::function<void()>& write) {
      bool written = false;
      telemetry([&] { write(), written = true; });
      return written;
    });
  }

  // Returns the figures of this attempt's joules at its site; without a reading, those of the joules until the last
  // one.
  energy::AtSite at_site_so_far(std::optional<double> joules) {
    if (!joules) return emissions_->so_far();
    const double seconds = 1e-9 * static_cast<double>(now_ns() - energy_.opened_ns());
    const energy::AtSite all = emissions_->so_far(*joules, seconds * job_.machine.ranks, wall_time());
    if (!emissions_->follows_series() && !std::exchange(series_left_, true))
      note(fmt::format("{} has no carbon intensity for the present; {:.4g} g CO2e/kWh count instead ({})",
                       emissions_->site().series->origin(), kGramsPerKwh * emissions_->site().intensity.value,
                       emissions_->site().intensity.source));
    return all;
  }

  energy::RunTotals totals_of(std::int64_t step, std::int64_t tokens, energy::EnergySoFar used) {
    if (emissions_ && used.total_j) used.at_site = at_site_so_far(used.total_j);
    return energy::add(before_, step - start_step_, tokens - start_tokens_, used, energy_.coverage());
  }

  void energy_lines(std::int64_t step, const energy::RunTotals& all, const energy::EnergySoFar& used) {
    doubts(step, used.doubts);
    if (!used.phases.empty()) energy_line("phases", step, {{"scopes", used.phases}, {"seconds", used.seconds}});
    if (const Json model = energy_.describe_model(); !model.is_null()) {
      const auto total = used.modelled.total();
      energy_line("modelled", step,
                  {{"source", name_of(energy::Source::kModel)},
                   {"energy_j", to_json(used.modelled)},
                   {"total", total ? to_json(*total) : Json()},
                   {"seconds", used.seconds},
                   {"scopes", model["scopes"]},
                   {"unavailable", model["unavailable"]}});
    }
    if (!used.by_host.empty()) {
      Json joules = Json::object(), scopes = Json::object(), lost = Json::object();
      for (const auto& [name, host] : used.by_host) {
        joules[name] = host.joules ? Json(*host.joules) : Json();
        scopes[name] = host.scopes;
        if (!host.lost.empty()) lost[name] = host.lost;
      }
      energy_line("by_host", step, {{"joules", joules}, {"scopes", scopes}, {"lost", lost}, {"seconds", used.seconds}});
    }
    energy_line("totals", step, energy::to_json(all));
  }

  // Appends a line to energy.jsonl (docs/formats/energy.md).
  void energy_line(const char* event, std::int64_t step, const Json& fields) {
    Json line{{"event", event}, {"wall_time_s", wall_time()}, {"attempt", run_.attempt()}, {"step", step}};
    line.update(fields);
    run_.energy(line);
  }

  void write_programs() {
    run_.write_program(program::print(job_.program, program::plan_memory(job_.program)));
    for (int stage = 1; stage < job_.setting.stages(); ++stage) {
      const auto p = job_.program_of(stage);
      run_.write_program(program::print(p, program::plan_memory(p)), stage);
    }
  }

  void begin_energy() {
    Json meters = energy_.describe();
    meters["coverage"] = energy::to_json(energy_.coverage());
    run_.event("meters", meters);
    console_.energy(meters, !energy_.coverage().summed.empty(), partial_);
    if (const Json model = energy_.describe_model(); !model.is_null()) {
      run_.event("energy_model", model);
      note(model_note(model));
    }
    if (emissions_) energy_line("site", start_step_, site_json(emissions_->site()));
    for (const std::string& problem : reading_problems_) note(problem + "; these joules are missing");
    if (last_ && last_->attempt == attempt() - 1)
      energy_line("last_reading", start_step_,
                  {{"of_attempt", last_->attempt},
                   {"energy_j", last_->of_attempt.by_scope},
                   {"total_j", last_->of_attempt.total},
                   {"seconds", last_->of_attempt.seconds},
                   {"ended_by_itself", last_->ended_at >= 0},
                   {"undone_j", undone_before_}});
    if (undone_before_ > 0.0)
      note(fmt::format(
          "failures undid steps that had consumed {:.6g} J; they are in the run's kWh, and not in its J/token",
          undone_before_));
  }

  // Records the scopes whose joules may be wrong, and why, whenever there are more.
  void doubts(std::int64_t step, const std::map<std::string, std::string>& reasons) {
    bool more = false;
    for (const auto& [scope, why] : reasons) {
      if (!doubted_.insert(scope).second) continue;
      more = true;
      note(fmt::format("the joules of {} are doubtful: {}", scope, why));
    }
    if (more) energy_line("doubtful", step, {{"reasons", reasons}});
  }

  // Records which scopes have no reading, and why, whenever that changes.
  void unread(std::int64_t step, const energy::StepEnergy& e) {
    std::set<std::string> scopes;
    Json reasons = Json::object();
    for (const auto& [scope, s] : e.scopes)
      if (!s.joules) {
        scopes.insert(scope);
        reasons[scope] = s.reason;
      }
    if (!e.total_j) {
      scopes.insert("total");
      reasons["total"] = e.total_reason;
    }
    if (scopes == unread_) return;
    unread_ = scopes;
    energy_line("unread", step, {{"reasons", reasons}});
  }

  // Uses torchtitan's names, so that its dashboards work here.
  void to_tensorboard(const store::StepMetrics& m) {
    const auto put = [&](const char* tag, double value) { tensorboard_.scalar(tag, value, m.step, m.wall_time_s); };
    put("loss_metrics/global_avg_loss", m.loss);
    put("grad_norm", m.grad_norm);
    put("lr", m.lr);
    if (m.balance_loss) put("loss_metrics/balance_loss", *m.balance_loss);
    if (m.z_loss) put("loss_metrics/z_loss", *m.z_loss);
    if (m.dropped_share) put("dropped_share", *m.dropped_share);
    if (m.loss_scale) put("loss_scale", *m.loss_scale);
    if (m.skipped_steps) put("skipped_steps", static_cast<double>(*m.skipped_steps));
    put("throughput(tps)", m.tokens_per_s);
    if (m.model_tflops_per_device) put("tflops", *m.model_tflops_per_device);
    if (m.mfu) put("mfu(%)", 100 * *m.mfu);
    if (m.hfu) put("hfu(%)", 100 * *m.hfu);
    put("time_metrics/end_to_end(s)", m.step_s);
    put("time_metrics/data_loading(s)", m.data_wait_s);
    put("memory/max_active(GiB)", static_cast<double>(m.memory_peak_bytes) / (1 << 30));
    if (m.j_per_token) put("energy/j_per_token", *m.j_per_token);
    if (m.kwh_total) put("energy/kwh_total", *m.kwh_total);
    if (m.kg_co2e_total) put("energy/kg_co2e_total", *m.kg_co2e_total);
    if (m.kwh_at_end) put("energy/kwh_at_end", m.kwh_at_end->value);
    if (m.kg_co2e_at_end) put("energy/kg_co2e_at_end", m.kg_co2e_at_end->value);
    tensorboard_.flush();
  }

  void to_prometheus(const store::StepMetrics& m) {
    using store::PrometheusType;
    const std::map<std::string, std::string> labels{{"run", run_.path().filename().string()}};
    std::vector<store::PrometheusSample> samples{
        {"molen_step", "Last finished optimizer step.", PrometheusType::kGauge, labels, static_cast<double>(m.step)},
        {"molen_loss", "Mean loss of the step in nats per token.", PrometheusType::kGauge, labels, m.loss},
        {"molen_tokens_total", "Tokens trained on.", PrometheusType::kCounter, labels,
         static_cast<double>(m.tokens_total)},
        {"molen_tokens_per_second", "Tokens per second over all ranks.", PrometheusType::kGauge, labels,
         m.tokens_per_s},
        {"molen_step_seconds", "Duration of the step.", PrometheusType::kGauge, labels, m.step_s},
        {"molen_memory_peak_bytes", "Highest byte of its plan that ops of any rank had in use.", PrometheusType::kGauge,
         labels, static_cast<double>(m.memory_peak_bytes)}};
    if (m.balance_loss)
      samples.push_back({"molen_balance_loss", "Balance loss of the routers; 1 where all experts have the same load.",
                         PrometheusType::kGauge, labels, *m.balance_loss});
    if (m.z_loss)
      samples.push_back({"molen_z_loss", "Mean square of the log-sum-exp of the routers' logits.",
                         PrometheusType::kGauge, labels, *m.z_loss});
    if (m.dropped_share)
      samples.push_back({"molen_dropped_share", "Share of the tokens' choices of experts that capacities drop.",
                         PrometheusType::kGauge, labels, *m.dropped_share});
    if (m.loss_scale)
      samples.push_back({"molen_loss_scale", "Multiple of the loss whose gradient the step was made of.",
                         PrometheusType::kGauge, labels, *m.loss_scale});
    if (m.skipped_steps)
      samples.push_back({"molen_skipped_steps_total", "Steps skipped because the gradient was not finite.",
                         PrometheusType::kCounter, labels, static_cast<double>(*m.skipped_steps)});
    auto covered = labels;
    if (!m.energy_coverage.empty()) covered["coverage"] = m.energy_coverage;
    if (m.j_per_token)
      samples.push_back(
          {"molen_joules_per_token", "Energy per token of the step.", PrometheusType::kGauge, covered, *m.j_per_token});
    if (m.kwh_total)
      samples.push_back({"molen_energy_joules_total", "Energy of the run so far, over all attempts.",
                         PrometheusType::kCounter, covered, *m.kwh_total * kJoulesPerKwh});
    if (m.kg_co2e_total)
      samples.push_back({"molen_co2e_kilograms_total",
                         "CO2e of the run so far: its energy, with the site's PUE, at the site's carbon intensity.",
                         PrometheusType::kCounter, covered, *m.kg_co2e_total});
    if (m.kwh_at_end)
      samples.push_back({"molen_energy_joules_at_end",
                         "Energy of the run when it ends, by the forecast of the last step.", PrometheusType::kGauge,
                         covered, m.kwh_at_end->value * kJoulesPerKwh});
    if (m.kg_co2e_at_end)
      samples.push_back({"molen_co2e_kilograms_at_end",
                         "CO2e of the run when it ends, by the forecast of the last step.", PrometheusType::kGauge,
                         covered, m.kg_co2e_at_end->value});
    rates(m, labels, samples);
    store::write_prometheus(run_.path() / "metrics.prom", samples);
  }

  // A rate that depends on how model FLOPs are counted has a label for it.
  void rates(const store::StepMetrics& m, const std::map<std::string, std::string>& labels,
             std::vector<store::PrometheusSample>& samples) const {
    using store::PrometheusType;
    auto counted = labels;
    counted["flops_formula"] = m.flops_formula;
    const auto put = [&](const char* name, const char* help, const std::map<std::string, std::string>& with,
                         std::optional<double> value) {
      if (value) samples.push_back({name, help, PrometheusType::kGauge, with, *value});
    };
    if (m.model_tflops_per_device)
      put("molen_model_flops_per_second", "Model FLOPs per second of a device.", counted,
          *m.model_tflops_per_device * 1e12);
    put("molen_mfu_ratio", "Model FLOPs per second of a device over its peak.", counted, m.mfu);
    put("molen_hfu_ratio", "FLOPs per second that a device executed, with recompute, over its peak.", labels, m.hfu);
    auto peak = labels;
    peak["source"] = job_.peak.source;
    put("molen_device_peak_flops_per_second", "Peak of a device.", peak, job_.peak.flops_per_s);
  }

  const Job& job_;
  const JobEnergy& energy_;
  std::string partial_;                 // what the joules leave out
  std::optional<Emissions> emissions_;  // where a site is named
  bool series_left_ = false;            // whether a note has said that the site's series has no value
  energy::RunTotals before_;
  std::optional<store::Consumed> last_;  // of the attempts before this one
  std::vector<std::string> reading_problems_;
  double undone_before_ = 0.0;  // J
  std::vector<double> step_j_;  // of the last steps
  std::int64_t start_step_ = 0, start_tokens_ = 0;
  std::set<std::string> doubted_;  // scopes whose doubts were said
  std::set<std::string> unread_;
  RunConsole console_;
  store::RunDirectory run_;  // declared after the console, which it warns on
  store::TensorBoardWriter tensorboard_;
  bool telemetry_failed_ = false;
  std::vector<std::function<void()>> kept_;  // writes of files that could not be written yet, in their order
  std::vector<store::TraceSpan> spans_;      // of the traced steps, in sequence
  std::vector<store::TraceCounter> power_;   // of this host in these steps
  double timeline_end_ = 0.0;
  double tokens_per_step_ = 0, model_flops_ = 0;
  double hardware_flops_ = 0;                      // of one rank's step, on average
  std::int64_t above_peak_ = 0, within_peak_ = 0;  // steps by HFU above 1 or not
};

Recorder::Recorder(const Job& job, const JobEnergy& energy, std::int64_t total_steps, std::int64_t stop_step)
    : impl_(std::make_unique<Impl>(job, energy, total_steps, stop_step)) {}
Recorder::~Recorder() = default;
void Recorder::begin(std::int64_t start_step, std::int64_t start_tokens, const MemoryPrediction& memory,
                     const std::string& state_hash, double hardware_flops) {
  impl_->begin(start_step, start_tokens, memory, state_hash, hardware_flops);
}
void Recorder::step(const StepRecord& record) {
  impl_->step(record);
}
Recorder::Spent Recorder::spent(std::optional<double> of_attempt) {
  return impl_->spent(of_attempt);
}
const cluster::RunSite* Recorder::site() const {
  return impl_->site();
}
void Recorder::set_length(std::int64_t total_steps, std::int64_t stop_step) {
  impl_->set_length(total_steps, stop_step);
}
void Recorder::budget(const Json& event) {
  impl_->budget(event);
}
void Recorder::trace(std::int64_t step, const std::vector<program::Expanded>& ops, const program::Timeline& timeline) {
  impl_->trace(step, ops, timeline);
}
void Recorder::validation(std::int64_t step, const ValidationResult& result) {
  impl_->validation(step, result);
}
void Recorder::noise_scale(std::int64_t step, const NoiseScale& scale) {
  impl_->noise_scale(step, scale);
}
void Recorder::checkpoint(std::int64_t step, const std::string& path, double seconds) {
  impl_->checkpoint(step, path, seconds);
}
void Recorder::prediction(const Prediction& prediction, const MemoryPrediction& memory, std::int64_t planned,
                          std::optional<Bytes> touched, std::int64_t rss) {
  impl_->prediction(prediction, memory, planned, touched, rss);
}
std::int64_t Recorder::attempt() const {
  return impl_->attempt();
}
Json Recorder::identity() const {
  return impl_->identity();
}
void Recorder::sync() {
  impl_->sync();
}
void Recorder::policy_begins(std::int64_t step, const Json& summary) {
  impl_->policy_begins(step, summary);
}
void Recorder::policy(std::int64_t step, const Json& summary) {
  impl_->policy(step, summary);
}
void Recorder::note(const std::string& text) {
  impl_->note(text);
}
void Recorder::end(std::int64_t step, std::int64_t tokens, const energy::EnergySoFar& used,
                   const launch::Communication& communication, const std::string& reason) {
  impl_->end(step, tokens, used, communication, reason);
}
store::EnergyRingHead Recorder::take_over_readings(std::int64_t step) {
  return impl_->take_over_readings(step);
}
void Recorder::forget_earlier_readings() {
  impl_->forget_earlier_readings();
}
std::int64_t Recorder::history() const {
  return impl_->history();
}
Json Recorder::totals(std::int64_t step, std::int64_t tokens, const energy::EnergySoFar& used) {
  return impl_->totals(step, tokens, used);
}
void Recorder::restore_totals(const Json& totals, std::int64_t step_done, const std::string& origin) {
  impl_->restore_totals(totals, step_done, origin);
}

}  // namespace molen::train
