#include "collect/job_labels.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

namespace molen::collect {
namespace {

constexpr const char* kKind = "job_labels";

}  // namespace

Event job_labels_event(double time_s, const JobLabels& labels) {
  std::string text = "job=" + labels.job;
  for (const auto& [key, value] :
       {std::pair("group", &labels.group), std::pair("account", &labels.account), std::pair("tag", &labels.tag)})
    if (!value->empty()) text += fmt::format(" {}={}", key, *value);
  return {time_s, kKind, text, 0};
}

std::optional<JobLabels> job_labels_of(const Event& event) {
  if (event.kind != kKind) return std::nullopt;
  JobLabels labels;
  std::istringstream words(event.text);
  for (std::string word; words >> word;) {
    for (const auto& [key, value] : {std::pair("job=", &labels.job), std::pair("group=", &labels.group),
                                     std::pair("account=", &labels.account), std::pair("tag=", &labels.tag)})
      if (word.starts_with(key)) *value = word.substr(std::string_view(key).size());
  }
  // A node may send any text. One that reads otherwise than it is written would book to a job what it shows for
  // another.
  const auto known = [](const std::string& label) {
    return label.empty() || (is_name(label) && label.size() <= kMostJobLabelBytes);
  };
  const bool named = is_name(labels.job) && known(labels.group) && known(labels.account) && known(labels.tag);
  if (!named || labels.empty() || job_labels_event(event.time_s, labels).text != event.text) return std::nullopt;
  return labels;
}

std::string as_job_label(std::string_view text) {
  return text.empty() ? "" : as_name(text).substr(0, kMostJobLabelBytes);
}

}  // namespace molen::collect
