// A database in memory that fails, waits and comes back as a test wants.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collect/database.h"
#include "collect/schema.h"

namespace molen::collect {

// The state that the test and the database share: the database itself belongs to a Writer.
struct FakeStore {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Batch> batches;       // stored, in order
  std::vector<std::size_t> groups;  // batches of each transaction that was tried
  LastNumbers last;
  bool away = false;                // every try fails
  int fail_after_commit = 0;        // so many tries store everything and then report a failure
  bool held = false;                // tries wait
  std::vector<Question> questions;  // answered, in order
  LimitOrder order;                 // of every node

  void set(bool FakeStore::*what, bool value) {
    {
      const std::lock_guard lock(mutex);
      this->*what = value;
    }
    changed.notify_all();
  }
  std::size_t size() {
    const std::lock_guard lock(mutex);
    return batches.size();
  }
  std::size_t tries() {
    const std::lock_guard lock(mutex);
    return groups.size();
  }
  std::vector<std::int64_t> numbers(const std::string& node) {
    const std::lock_guard lock(mutex);
    std::vector<std::int64_t> numbers;
    for (const Batch& b : batches)
      if (b.node == node) numbers.push_back(b.seq);
    return numbers;
  }
};

class FakeDatabase : public Database {
 public:
  explicit FakeDatabase(std::shared_ptr<FakeStore> store) : store_(std::move(store)) {}

  std::string name() const override { return "a fake"; }
  Result<Stored> store(std::span<const Batch> batches) override {
    std::unique_lock lock(store_->mutex);
    store_->groups.push_back(batches.size());
    store_->changed.notify_all();
    store_->changed.wait(lock, [&] { return !store_->held; });
    if (store_->away) return Failure{"the fake is away"};
    Stored stored;
    for (const std::size_t i : new_batches(batches, store_->last)) {
      store_->batches.push_back(batches[i]);
      stored += {1, 0, std::ssize(batches[i].periods), std::ssize(batches[i].events)};
    }
    stored.duplicates = std::ssize(batches) - stored.batches;
    if (store_->fail_after_commit > 0) {
      --store_->fail_after_commit;
      return Failure{"the answer to the commit was lost"};
    }
    return stored;
  }

  Result<std::vector<LimitOrder>> answer(std::span<const Question> questions, double) override {
    const std::lock_guard lock(store_->mutex);
    if (store_->away) return Failure{"the fake is away"};
    store_->questions.insert(store_->questions.end(), questions.begin(), questions.end());
    return std::vector<LimitOrder>(questions.size(), store_->order);
  }
  Result<Stored> order(std::span<const NodeOrder>) override { return Failure{"the fake takes no orders"}; }

 private:
  std::shared_ptr<FakeStore> store_;
};

// Waits until a condition holds; returns false after 20 s.
template <class F>
bool eventually(F condition) {
  for (int i = 0; i < 4000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

}  // namespace molen::collect
