#include "collect/spool.h"

#include <poll.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "base/temporary.h"
#include "base/units.h"
#include "collect/wire.h"

namespace molen::collect {
namespace {

constexpr std::int64_t kSpoolFormat = 1;
constexpr std::size_t kLeastSpoolBytes = 256 * 1024;
constexpr int kSpoolLookMs = 20;         // between two tries to lock it
const std::string kDropped = "dropped";  // the kind of the event

std::string spool_header(const std::string& node) {
  return Json{{"molen_energy_spool", kSpoolFormat}, {"node", node}}.dump() + "\n";
}

UsageError no_spool(const fs::path& file) {
  return UsageError("{}: is no spool of `molen energy send`: name another file with --spool", file.string());
}

// Throws UsageError unless the first line of a spool is that of this node.
void require_header(std::string_view line, const std::string& node, const fs::path& file) {
  Json json;
  try {
    json = parse_json(line, file.string(), 4);
  } catch (const UsageError&) {
    throw no_spool(file);
  }
  if (!json.is_object() || !json.contains("molen_energy_spool")) throw no_spool(file);
  const JsonFields fields(json, file.string());
  if (fields.integer("molen_energy_spool") != kSpoolFormat)
    throw UsageError("{}: another version of molen wrote this spool: let that version send it, or move it away",
                     file.string());
  if (const std::string owner = fields.text("node"); owner != node)
    throw UsageError("{}: this spool belongs to node {}, and not to {}: name another file with --spool", file.string(),
                     owner, node);
}

std::int64_t reported_dropped(const Batch& batch) {
  std::int64_t count = 0;
  for (const Event& e : batch.events)
    if (e.kind == kDropped) count += e.count;
  return count;
}

}  // namespace

Spool::Spool(fs::path file, std::string node, SpoolOptions options)
    : path_(std::move(file)),
      node_(std::move(node)),
      session_(new_session()),
      header_(spool_header(node_)),
      options_(std::move(options)) {
  MOLEN_CHECK(is_name(node_), "'{}' is no name of a node", node_);
  MOLEN_CHECK(options_.most_bytes >= kLeastSpoolBytes, "a spool of {} bytes", options_.most_bytes);
  lock();
  if (path_exists(path_)) load();
  // Also when nothing changes: it shows at once that the file may be written.
  rewrite();
}

void Spool::lock() {
  fs::path name = path_;
  name += ".lock";
  lock_.emplace(File::append(name));
  double until_s = now().value + options_.wait_s;
  pollfd stop{options_.stop, POLLIN, 0};
  while (::flock(lock_->descriptor(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) throw IoError(errno, "{}: cannot be locked", name.string());
    if (now().value >= until_s)
      throw SpoolInUse("{}: another process sends from this spool: name another file with --spool", path_.string());
    if (::poll(&stop, 1, kSpoolLookMs) <= 0) continue;
    stop.fd = -1;
    until_s = std::min(until_s, now().value + kSpoolStoppedWaitS);
  }
}

void Spool::load() {
  const std::string content = read_file(path_, static_cast<std::int64_t>(4 * options_.most_bytes));
  std::string_view rest = content;
  bool first = true;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (std::exchange(first, false)) {
      require_header(line, node_, path_);
      continue;
    }
    try {
      // A line without its end was cut off.
      if (end == std::string_view::npos) throw UsageError("incomplete");
      const Batch batch = parse_batch(line, node_, "a line");
      lines_.push_back({batch.session, batch.seq, std::string(line) + "\n", reported_dropped(batch)});
      waiting_bytes_ += line.size() + 1;
    } catch (const UsageError&) {
      ++unread_;
    }
  }
  if (first) throw no_spool(path_);
  if (unread_ > 0)
    options_.say(fmt::format("{}: {} could not be read and {} lost", path_.string(), counted(unread_, "line"),
                             unread_ == 1 ? "is" : "are"));
}

const std::string& Spool::line(std::int64_t number) const {
  MOLEN_CHECK(number >= begin() && number < end(), "line {} of a spool with {} to {}", number, begin(), end());
  return lines_[static_cast<std::size_t>(number - begin_)].text;
}

void Spool::forget_first() {
  waiting_bytes_ -= lines_.front().text.size();
  lines_.pop_front();
  ++begin_;
}

// Makes room for a line of any length, and returns the number of dropped batches that are to be reported. An eighth is
// dropped at once, because the file is written anew each time.
std::int64_t Spool::make_room() {
  std::int64_t to_report = 0;
  if (waiting_bytes_ + kMostLineBytes <= options_.most_bytes) return to_report;
  const std::int64_t before = dropped_;
  while (!lines_.empty() && waiting_bytes_ + kMostLineBytes > options_.most_bytes - options_.most_bytes / 8) {
    to_report += 1 + lines_.front().reported;  // a report that is dropped goes into the next one
    ++dropped_;
    forget_first();
  }
  options_.say(fmt::format("{}: {} dropped for want of room", path_.string(), counted(dropped_ - before, "batch")));
  return to_report;
}

void Spool::add(Batch batch) {
  batch.node = node_;
  batch.session = session_;
  batch.seq = ++seq_;
  const std::int64_t dropped = make_room();
  if (dropped > 0)
    batch.events.push_back({wall_time(), kDropped,
                            "the spool had no room, because the collector did not acknowledge: the oldest batches of "
                            "this node were dropped",
                            dropped});
  if (unread_ > 0)
    batch.events.push_back(
        {wall_time(), kDropped, "batches in the spool could not be read", std::exchange(unread_, 0)});
  std::string text = batch_line(batch);
  lines_.push_back({session_, batch.seq, text, reported_dropped(batch)});
  waiting_bytes_ += text.size();
  try {
    if (failing_ || dropped > 0 || file_bytes_ + text.size() > 2 * options_.most_bytes)
      rewrite();
    else
      append(text);
    if (std::exchange(failing_, false)) options_.say(fmt::format("{}: can be written again", path_.string()));
  } catch (const IoError& error) {
    if (!std::exchange(failing_, true))
      options_.say(
          fmt::format("{}; records that are not sent yet are in memory only until it can be written", error.what()));
  }
}

void Spool::append(const std::string& text) {
  file_->write(text);
  file_->sync();
  file_bytes_ += text.size();
}

void Spool::rewrite() {
  std::string content = header_;
  for (const Line& line : lines_) content += line.text;
  write_file_atomic(path_, content);
  file_.emplace(File::append(path_));
  file_bytes_ = content.size();
}

bool Spool::acknowledges(std::int64_t number, const std::string& session, std::int64_t seq) const {
  const auto from = lines_.begin() + std::clamp<std::ptrdiff_t>(number - begin_, 0, std::ssize(lines_));
  return std::any_of(from, lines_.end(), [&](const Line& l) { return l.session == session && l.seq <= seq; });
}

void Spool::acknowledge(const std::string& session, std::int64_t seq) {
  // The lines of a session stand together, in the order of their numbers. The collector acknowledges batches in the
  // order in which it gets them, so whatever stands before this one is stored too.
  std::size_t stored = 0;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const bool same = lines_[i].session == session;
    if (same && lines_[i].seq <= seq)
      stored = i + 1;
    else if (same || stored > 0)
      break;
  }
  if (stored == 0) return;  // dropped meanwhile
  for (std::size_t i = 0; i < stored; ++i) forget_first();
  if (!lines_.empty() || failing_) return;
  try {
    // A power cut may undo this; then the lines are sent again, and count once.
    file_->truncate(static_cast<std::int64_t>(header_.size()));
    file_bytes_ = header_.size();
  } catch (const IoError&) {  // the next batch says so if the disk still fails
    failing_ = true;
  }
}

}  // namespace molen::collect
