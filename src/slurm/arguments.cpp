#include "slurm/arguments.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace molen::slurm {
namespace {

constexpr std::size_t kMostWordBytes = 4096;
constexpr std::size_t kMostLabelBytes = 128;
constexpr double kShortestPeriodS = 0.1, kLongestPeriodS = 1800;  // those of `molen energy send --every`

// The numbers that Slurm gives to steps that are no srun (slurm/slurm.h).
constexpr std::uint32_t kExternStep = 0xfffffffc, kBatchStep = 0xfffffffb, kInteractiveStep = 0xfffffffa;

std::string with_host(std::string_view value, const std::string& host) {
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value.substr(i, 2) == "%h")
      out += host, ++i;
    else
      out += value[i];
  }
  return out;
}

std::string file_name_of(std::string_view host) {
  std::string name(host.substr(0, kMostLabelBytes));
  for (char& c : name)
    if (c <= ' ' || c > '~' || c == '/') c = '_';
  return name.empty() || name.front() == '.' ? "_" + name : name;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  std::erase(parts, "");
  return parts;
}

bool is_period(const std::string& text) {
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, seconds, std::chars_format::fixed);
  return error == std::errc() && at == end && seconds >= kShortestPeriodS && seconds <= kLongestPeriodS;
}

// Sets one value; returns what is wrong with the key.
std::string set_argument(Arguments& arguments, std::string_view key, const std::string& value) {
  if (value.empty()) return plain(key, kMostLabelBytes) + " has no value";
  if (key == "molen")
    arguments.molen = value;
  else if (key == "collector")
    arguments.collector = value;
  else if (key == "spool")
    arguments.spool = value;
  else if (key == "token")
    arguments.token = value;
  else if (key == "log")
    arguments.log = value;
  else if (key == "every")
    arguments.every = value;
  else if (key == "meters")
    arguments.meters = split_at_commas(value);
  else
    return "no argument is called '" + plain(key, kMostLabelBytes) +
           "'; there are molen, collector, spool, token, log, every, meters";
  return "";
}

std::string wrong_with(const Arguments& a) {
  for (const auto& [key, value] : {std::pair{"molen", &a.molen}, {"collector", &a.collector}, {"spool", &a.spool}})
    if (value->empty()) return std::string(key) + "= is missing";
  for (const auto& [key, value] :
       {std::pair{"molen", &a.molen}, {"spool", &a.spool}, {"token", &a.token}, {"log", &a.log}})
    if (!value->empty() && value->front() != '/') return std::string(key) + "= must be an absolute path";
  if (!is_period(a.every)) return "every= must be seconds from 0.1 to 1800";
  return "";
}

}  // namespace

Parsed<Arguments> parse_arguments(const std::vector<std::string_view>& words, const std::string& host) {
  Arguments arguments;
  std::set<std::string_view> seen;
  for (const std::string_view word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos || word.size() > kMostWordBytes)
      return {{}, "'" + plain(word, kMostLabelBytes) + "' must be key=value"};
    const std::string_view key = word.substr(0, equals);
    std::string wrong = set_argument(arguments, key, with_host(word.substr(equals + 1), host));
    if (wrong.empty() && !seen.insert(key).second) wrong = std::string(key) + "= is there twice";
    if (!wrong.empty()) return {{}, wrong};
  }
  if (std::string wrong = wrong_with(arguments); !wrong.empty()) return {{}, wrong};
  if (arguments.log.empty()) arguments.log = arguments.spool + "/send.log";
  arguments.host = file_name_of(host);
  return {arguments, ""};
}

std::string step_name(std::uint32_t step) {
  if (step == kBatchStep) return "batch";
  if (step == kExternStep) return "extern";
  if (step == kInteractiveStep) return "interactive";
  return std::to_string(step);
}

std::vector<std::string> command_of_step(const Arguments& a, const StepLabels& labels) {
  // A value stands in the word of its flag, so that none that begins with a dash is taken for a flag.
  std::vector<std::string> command{a.molen,
                                   "energy",
                                   "send",
                                   "--to=" + a.collector,
                                   "--spool=" + a.spool + "/" + a.host + ".spool",
                                   "--lock=" + a.spool + "/" + a.host + ".turn",
                                   "--until-hangup",
                                   "--every=" + a.every,
                                   "--job=" + labels.job,
                                   "--step=" + labels.step,
                                   "--uid=" + std::to_string(labels.uid)};
  if (labels.gid) command.push_back("--gid=" + std::to_string(*labels.gid));
  if (!a.token.empty()) command.push_back("--token-file=" + a.token);
  for (const std::string& meter : a.meters) command.push_back("--meters=" + meter);
  return command;
}

}  // namespace molen::slurm
