// What a job is booked to beside its user. Its periods do not repeat it: senders tell it once, as an event, and the
// database keeps it by job.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "collect/record.h"

namespace molen::collect {

inline constexpr std::size_t kMostJobLabelBytes = 100;  // so that the text of the event holds all of them

// Names of the batch system; empty when not known.
struct JobLabels {
  std::string job, group, account, tag;
  bool operator==(const JobLabels&) const = default;
  bool empty() const { return group.empty() && account.empty() && tag.empty(); }
};

// Returns an event `job_labels`, whose text is "job=77 group=physics account=a1 tag=x" without what is not known.
Event job_labels_event(double time_s, const JobLabels& labels);

// Returns the labels of such an event; nothing for another event, and for one that names no job, no label, or
// something that is no name.
std::optional<JobLabels> job_labels_of(const Event& event);

}  // namespace molen::collect
