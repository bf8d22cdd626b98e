// Labels of a job: the group, the account and the tag that its energy is booked to. The periods of a job do not repeat
// its labels. A sender tells them in an event at its start and at its end, and the database keeps them for the sender's
// session. So no sender changes the labels that another sender has told, and a job has no labels of an earlier job with
// the same number.
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
