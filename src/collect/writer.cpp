#include "collect/writer.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/units.h"

namespace molen::collect {

Writer::Writer(std::unique_ptr<Database> database, WriterOptions options, std::function<void()> wake)
    : database_(std::move(database)), options_(std::move(options)), wake_(std::move(wake)) {
  thread_ = std::thread([this] { work(); });
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Writer::has_room() const {
  const std::lock_guard lock(mutex_);
  return bytes_ < options_.most_bytes;
}

void Writer::offer(Waiting waiting) {
  {
    const std::lock_guard lock(mutex_);
    bytes_ += waiting.bytes();
    waiting_.push_back(std::move(waiting));
  }
  changed_.notify_all();
}

std::vector<Done> Writer::take_done() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

void Writer::finish() {
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  changed_.notify_all();
}

bool Writer::is_finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

Stored Writer::stored() const {
  const std::lock_guard lock(mutex_);
  return stored_;
}

std::int64_t Writer::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

void Writer::work() {
  ::pthread_setname_np(::pthread_self(), "database");  // as `top -H` shows it
  std::vector<Waiting> group;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || finishing_ || !waiting_.empty(); });
    if (stopping_ || (finishing_ && waiting_.empty())) break;
    const std::size_t taken = std::min(waiting_.size(), options_.group);
    group.assign(std::make_move_iterator(waiting_.begin()),
                 std::make_move_iterator(waiting_.begin() + static_cast<std::ptrdiff_t>(taken)));
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken));
    for (;;) {
      lock.unlock();
      const bool stored = serve(group);
      lock.lock();
      if (stored || finishing_) break;
      changed_.wait_for(lock, std::chrono::duration<double>(pause_s_), [this] { return stopping_ || finishing_; });
      if (stopping_) break;
    }
    if (stopping_ || (finishing_ && !failing_.empty())) break;
    wake_();
  }
  finished_ = true;
  wake_();
}

namespace {

// No failure of a database may end the collector.
Result<Stored> stored_or_reason(Database& database, std::span<const Batch> batches) {
  try {
    return database.store(batches);
  } catch (const std::exception& error) {
    return Failure{fmt::format("{}: {}", database.name(), error.what())};
  }
}

Result<std::vector<LimitOrder>> answered_or_reason(Database& database, std::span<const Question> questions) {
  try {
    return database.answer(questions, wall_time());
  } catch (const std::exception& error) {
    return Failure{fmt::format("{}: {}", database.name(), error.what())};
  }
}

}  // namespace

// Stores the batches of a group and answers its questions; what was done leaves the group.
bool Writer::serve(std::vector<Waiting>& group) {
  const auto questions =
      std::stable_partition(group.begin(), group.end(), [](const Waiting& w) { return !w.question; });
  if (questions != group.begin() && !store(group, questions)) return false;
  if (!group.empty() && !answer(group)) return false;
  if (!failing_.empty() && options_.say)
    options_.say(fmt::format("the database answers again, after {}", human(now() - Seconds(failing_since_s_))));
  failing_.clear();
  return true;
}

bool Writer::store(std::vector<Waiting>& group, std::vector<Waiting>::iterator end) {
  const auto count = static_cast<std::size_t>(end - group.begin());
  std::vector<Batch> batches;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += group[i].bytes();
    batches.push_back(std::move(group[i].batch));
  }
  const Result<Stored> stored = stored_or_reason(*database_, batches);
  if (!stored) {
    for (std::size_t i = 0; i < count; ++i) group[i].batch = std::move(batches[i]);
    failed(stored.reason());
    return false;
  }
  const std::lock_guard lock(mutex_);
  stored_ += stored.value();
  bytes_ -= bytes;
  for (std::size_t i = 0; i < count; ++i)
    done_.push_back({group[i].connection, std::move(batches[i].session), batches[i].seq});
  group.erase(group.begin(), end);
  return true;
}

bool Writer::answer(std::vector<Waiting>& group) {
  std::vector<Question> questions;
  std::size_t bytes = 0;
  for (const Waiting& w : group) {
    bytes += w.bytes();
    questions.push_back({w.batch.node, *w.question});
  }
  const Result<std::vector<LimitOrder>> orders = answered_or_reason(*database_, questions);
  if (!orders) {
    failed(orders.reason());
    return false;
  }
  for (const LimitOrder& order : orders.value())
    if (!order.problem.empty() && options_.say) options_.say(fmt::format("{}; the node has no limits", order.problem));
  const std::lock_guard lock(mutex_);
  bytes_ -= bytes;
  for (std::size_t i = 0; i < group.size(); ++i) done_.push_back({group[i].connection, "", 0, orders.value().at(i)});
  group.clear();
  return true;
}

void Writer::failed(const std::string& reason) {
  const bool first = failing_.empty();
  if (first) failing_since_s_ = now().value;
  pause_s_ = first ? options_.retry_first_s : std::min(2.0 * pause_s_, options_.retry_last_s);
  // The reason often changes from a lost connection to a refused one: said once, it need not be said again.
  if (first && options_.say)
    options_.say(
        fmt::format("{}; no batch is acknowledged until it answers, and the nodes keep what they measure", reason));
  failing_ = reason;
  const std::lock_guard lock(mutex_);
  ++failures_;
}

}  // namespace molen::collect
