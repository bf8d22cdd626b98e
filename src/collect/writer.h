// The thread of the collector that stores batches, many in one transaction. While the database is away it keeps what
// waits, and tries again; the collector then stops reading, so that the nodes keep the rest.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collect/database.h"

namespace molen::collect {

struct Waiting {
  std::uint64_t connection = 0;  // that the answer goes to
  Batch batch;
  // A question for limits in place of a batch, of which only the node counts then.
  std::optional<Limitable> question = std::nullopt;
  std::size_t bytes() const { return batch.bytes() + (question ? question->bytes() : 0); }
};

// A batch that is stored, or a question that is answered.
struct Done {
  std::uint64_t connection = 0;
  std::string session;
  std::int64_t seq = 0;
  std::optional<LimitOrder> order = std::nullopt;
};

struct WriterOptions {
  std::size_t most_bytes = std::size_t{64} << 20;  // of batches that wait or are being stored
  std::size_t group = 1000;                        // batches of a transaction, at most
  double retry_first_s = 0.1, retry_last_s = 5.0;  // between two tries; each pause is twice the one before
  std::function<void(const std::string&)> say;     // what a person should know; called by the thread
};

class Writer {
 public:
  // `wake` is called, by the thread, when there is something to take or room again.
  Writer(std::unique_ptr<Database> database, WriterOptions options, std::function<void()> wake);
  // Stops at once, after the transaction that runs, if any.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Returns whether another batch may be offered. Offered batches are stored in their order. Questions are answered
  // after the batches that wait.
  bool has_room() const;
  void offer(Waiting waiting);
  // Returns the batches that were stored since the last call.
  std::vector<Done> take_done();
  // From now on the thread gives up what a try does not store, and ends when nothing waits.
  void finish();
  bool is_finished() const;  // the thread has nothing more to do after `finish`

  Stored stored() const;          // in all
  std::int64_t failures() const;  // tries that failed

 private:
  void work();
  bool serve(std::vector<Waiting>& group);
  bool store(std::vector<Waiting>& group, std::vector<Waiting>::iterator end);
  bool answer(std::vector<Waiting>& group);
  void failed(const std::string& reason);

  const std::unique_ptr<Database> database_;
  const WriterOptions options_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  std::size_t bytes_ = 0;
  std::vector<Done> done_;
  Stored stored_;
  std::int64_t failures_ = 0;
  bool finishing_ = false, stopping_ = false, finished_ = false;
  // Only the thread uses these: the failure that lasts, and since when.
  std::string failing_;
  double failing_since_s_ = 0, pause_s_ = 0;
  std::thread thread_;
};

}  // namespace molen::collect
