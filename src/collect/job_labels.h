// What a job is booked to beside its user. Its periods do not repeat it: a sender tells it at its start and its end, as
// an event, and the database keeps it for the sender's session. So no sender changes what another one has told, and a
// job number that comes round again has no labels of an earlier job.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

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

// Returns the labels of such an event; nothing for another event, and for one whose text is not of that form.
std::optional<JobLabels> job_labels_of(const Event& event);

// Returns the label as a name of at most kMostJobLabelBytes; "" for "".
std::string as_job_label(std::string_view text);

}  // namespace molen::collect
