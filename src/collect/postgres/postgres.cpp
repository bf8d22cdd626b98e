#include "collect/postgres/postgres.h"

#include <libpq-fe.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collect/job_labels.h"
#include "collect/schema.h"

namespace molen::collect {
namespace {

// The words of the server, or of libpq, for a call that failed.
class PostgresFailure : public Error {
 public:
  explicit PostgresFailure(const std::string& what) : Error(what) {}
};

// The server's messages end in newlines and may have several lines.
std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::ranges::replace(text, '\n', ' ');
  return text;
}

using PostgresRows = std::unique_ptr<PGresult, decltype(&PQclear)>;

// A connection. Every method throws PostgresFailure.
class Session {
 public:
  explicit Session(const std::string& uri) {
    // Limits for a server that no longer answers; the URI may set others. Its options come last, so they win.
    const std::array keys{"connect_timeout",
                          "tcp_user_timeout",
                          "keepalives_idle",
                          "application_name",
                          "dbname",
                          "client_encoding",
                          static_cast<const char*>(nullptr)};
    const std::array values{
        "10", "30000", "30", "molen energy collect", uri.c_str(), "UTF8", static_cast<const char*>(nullptr)};
    db_.reset(PQconnectdbParams(keys.data(), values.data(), 1));
    if (!db_) throw PostgresFailure("no memory for a connection");
    if (PQstatus(db_.get()) != CONNECTION_OK) throw PostgresFailure(one_line(PQerrorMessage(db_.get())));
    PQsetNoticeProcessor(
        db_.get(), [](void*, const char*) {}, nullptr);
    // A database may be set to read a backslash in '...' as an escape. Literals of sql_text rely on the standard.
    (void)run("SET standard_conforming_strings = on");
  }

  PostgresRows run(const char* sql, const std::vector<std::string>& parameters = {}) {
    std::vector<const char*> values;
    for (const std::string& p : parameters) values.push_back(p.c_str());
    PostgresRows rows(
        PQexecParams(db_.get(), sql, static_cast<int>(values.size()), nullptr, values.data(), nullptr, nullptr, 0),
        &PQclear);
    const ExecStatusType status = PQresultStatus(rows.get());
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_COPY_IN) fail(rows.get());
    return rows;
  }

  // Sends rows in the text form of COPY.
  void copy(const char* sql, const std::string& rows) {
    if (rows.empty()) return;
    (void)run(sql);
    if (PQputCopyData(db_.get(), rows.data(), static_cast<int>(rows.size())) != 1 ||
        PQputCopyEnd(db_.get(), nullptr) != 1)
      throw PostgresFailure(one_line(PQerrorMessage(db_.get())));
    const PostgresRows done(PQgetResult(db_.get()), &PQclear);
    if (PQresultStatus(done.get()) != PGRES_COMMAND_OK) fail(done.get());
    while (const PostgresRows more{PQgetResult(db_.get()), &PQclear}) {
    }
  }

  std::string text(const char* sql) {
    const PostgresRows rows = run(sql);
    return PQntuples(rows.get()) > 0 ? PQgetvalue(rows.get(), 0, 0) : "";
  }
  std::string place() const {
    const auto known = [](const char* s) { return std::string(s != nullptr ? s : ""); };
    return fmt::format("PostgreSQL {} at {}", known(PQdb(db_.get())), known(PQhost(db_.get())));
  }

 private:
  [[noreturn]] void fail(const PGresult* result) const {
    std::string why = one_line(PQresultErrorMessage(result));
    if (why.empty()) why = one_line(PQerrorMessage(db_.get()));
    throw PostgresFailure(why);
  }

  std::unique_ptr<PGconn, decltype(&PQfinish)> db_{nullptr, &PQfinish};
};

// Returns whether the database has tables of molen. Throws VersionError if they are those of another version.
bool postgres_version_there(Session& db, const std::string& name) {
  if (db.text("SELECT to_regclass('energy_version')").empty()) return false;
  const std::string version = db.text("SELECT version FROM energy_version");
  require_version(version.empty() ? 0 : std::stoll(version), name);
  return true;
}

bool postgres_version_there(Session& db, const LaterTables& tables, const std::string& name) {
  const std::string& table = tables.version_table;
  if (db.text(fmt::format("SELECT to_regclass({})", sql_text(table)).c_str()).empty()) return false;
  const std::string version = db.text(("SELECT version FROM " + table).c_str());
  require_version(version.empty() ? 0 : std::stoll(version), tables, name);
  return true;
}

// Rolls back unless `commit` was called.
class PostgresTransaction {
 public:
  explicit PostgresTransaction(Session& db) : db_(db) { (void)db_.run("BEGIN"); }
  ~PostgresTransaction() {
    if (done_) return;
    try {
      (void)db_.run("ROLLBACK");
    } catch (const PostgresFailure&) {  // the connection is closed next, which rolls back too
    }
  }
  PostgresTransaction(const PostgresTransaction&) = delete;
  PostgresTransaction& operator=(const PostgresTransaction&) = delete;
  void commit() {
    done_ = true;
    const PostgresRows committed = db_.run("COMMIT");
    // The server answers ROLLBACK where the transaction had failed.
    if (std::string_view(PQcmdStatus(committed.get())) != "COMMIT")
      throw PostgresFailure("the transaction was rolled back");
  }

 private:
  Session& db_;
  bool done_ = false;
};

// Writes the literal of an array, "{"a","b"}".
class ArrayLiteral {
 public:
  void add(std::string_view text) {
    text_ += text_.empty() ? "{\"" : ",\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += c;
    }
    text_ += '"';
  }
  std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string text_;
};

// Writes a column of COPY's text form. Texts have no control characters (collect/record.h), so that only the backslash
// needs an escape.
void add_column(std::string& row, std::string_view text) {
  if (!row.empty() && row.back() != '\n') row += '\t';
  for (const char c : text) {
    if (c == '\\') row += '\\';
    row += c;
  }
}
void add_null(std::string& row) {
  row += "\t\\N";  // never the first column
}
void add_known(std::string& row, const std::string& text) {
  if (text.empty())
    add_null(row);
  else
    add_column(row, text);
}
// Digits enough for the same double.
void add_number(std::string& row, double value) {
  add_column(row, fmt::format("{}", value));
}

void add_row(std::string& rows, std::int64_t id, const Batch& batch, const Period& p) {
  add_column(rows, std::to_string(id));
  add_column(rows, std::to_string(batch.seq));
  add_column(rows, batch.node);
  add_column(rows, p.scope);
  add_number(rows, p.start_s);
  add_number(rows, p.end_s);
  if (p.joules)
    add_number(rows, *p.joules);
  else
    add_null(rows);
  add_known(rows, p.reason);
  add_column(rows, p.meter);
  add_column(rows, energy::name_of(p.source));
  add_column(rows, p.counted ? "1" : "0");
  add_known(rows, p.job);
  add_known(rows, p.step);
  add_known(rows, p.user);
  rows += '\n';
}

void add_row(std::string& rows, std::int64_t id, const Batch& batch, const Event& e) {
  add_column(rows, std::to_string(id));
  add_column(rows, std::to_string(batch.seq));
  add_column(rows, batch.node);
  add_number(rows, e.time_s);
  add_column(rows, e.kind);
  add_column(rows, e.text);
  add_column(rows, std::to_string(e.count));
  rows += '\n';
}

class PostgresDatabase : public Database {
 public:
  explicit PostgresDatabase(std::string uri) : uri_(std::move(uri)) {}

  std::string name() const override { return name_; }

  void connect() {
    db_ = std::make_unique<Session>(uri_);
    name_ = db_->place();
    if (const std::string encoding = db_->text("SHOW server_encoding"); encoding != "UTF8")
      throw UsageError("{}: its encoding is {}; create the database with encoding UTF8", name_, encoding);
    if (db_->text("SHOW fsync") == "off")
      throw UsageError(
          "{}: the server runs with fsync = off, so a power cut would lose records that the nodes no longer keep; set "
          "fsync = on in its postgresql.conf",
          name_);
    // A commit is on the disk when it returns. Other settings than off wait for that, or for more.
    if (db_->text("SHOW synchronous_commit") == "off") (void)db_->run("SET synchronous_commit = on");
    // The locks of a collector that lost power must not hold up the next one for hours.
    for (const char* limit : {"idle_in_transaction_session_timeout = '60s'", "lock_timeout = '30s'",
                              "tcp_keepalives_idle = 30", "tcp_keepalives_interval = 10", "tcp_keepalives_count = 3"})
      (void)db_->run(fmt::format("SET {}", limit).c_str());
    create_tables();
  }

  Result<Stored> store(std::span<const Batch> batches) override {
    return connected<Stored>([&] { return store_now(batches); });
  }
  Result<std::vector<LimitOrder>> answer(std::span<const Question> questions, double now_s) override {
    return connected<std::vector<LimitOrder>>([&] { return answer_now(questions, now_s); });
  }
  Result<Stored> order(std::span<const NodeOrder> orders) override {
    return connected<Stored>([&] { return order_now(orders); });
  }

 private:
  // Calls f() with a connection.
  template <class T, class F>
  Result<T> connected(F f) {
    try {
      if (!db_) connect();
      return f();
    } catch (const PostgresFailure& error) {
      db_.reset();
      return Failure{fmt::format("{}: {}", name_, error.what())};
    } catch (const UsageError& error) {  // another database took its place; the right one may come back
      db_.reset();
      return Failure{error.what()};
    } catch (const VersionError& error) {
      db_.reset();
      return Failure{error.what()};
    }
  }

  void create_tables() {
    PostgresTransaction transaction(*db_);
    // Two collectors that start together must not both create. The number is molen's own.
    (void)db_->run("SELECT pg_advisory_xact_lock(7234012655131137)");
    if (!postgres_version_there(*db_, name_))
      for (const std::string& sql : schema_statements(Dialect::kPostgres)) (void)db_->run(sql.c_str());
    for (const LaterTables& tables : later_tables()) {
      if (postgres_version_there(*db_, tables, name_)) continue;
      for (const std::string& sql : tables.statements) (void)db_->run(sql.c_str());
      if (tables.from_events) enter_told_labels();
    }
    transaction.commit();
  }

  using SessionIds = std::map<std::pair<std::string, std::string>, std::int64_t>;

  // Enters sessions that are new, and locks the rows of all, so that another collector cannot store the same batch.
  SessionIds lock_sessions(LastNumbers& last) {
    ArrayLiteral nodes, sessions;
    for (const auto& [key, number] : last) nodes.add(key.first), sessions.add(key.second);
    const std::vector<std::string> keys{nodes.text(), sessions.text()};
    (void)db_->run(
        "INSERT INTO energy_sessions (node, session, last_seq) SELECT n, s, 0 FROM unnest($1::text[], "
        "$2::text[]) AS k (n, s) ORDER BY n, s ON CONFLICT DO NOTHING",
        keys);
    const PostgresRows rows = db_->run(
        "SELECT e.id, e.node, e.session, e.last_seq FROM energy_sessions e JOIN unnest($1::text[], $2::text[]) "
        "AS k (n, s) ON e.node = n AND e.session = s ORDER BY e.id FOR UPDATE OF e",
        keys);
    SessionIds ids;
    for (int i = 0; i < PQntuples(rows.get()); ++i) {
      const std::pair key(std::string(PQgetvalue(rows.get(), i, 1)), std::string(PQgetvalue(rows.get(), i, 2)));
      ids[key] = std::stoll(PQgetvalue(rows.get(), i, 0));
      last[key] = std::stoll(PQgetvalue(rows.get(), i, 3));
    }
    if (ids.size() != last.size()) throw PostgresFailure("sessions that were entered are not there");
    return ids;
  }

  Stored store_now(std::span<const Batch> batches) {
    PostgresTransaction transaction(*db_);
    LastNumbers last = sessions_of(batches);
    SessionIds ids = lock_sessions(last);
    Stored stored;
    std::string periods, events;
    Told labels;
    for (const std::size_t i : new_batches(batches, last)) {
      const std::int64_t id = ids[{batches[i].node, batches[i].session}];
      for (const Period& p : batches[i].periods) add_row(periods, id, batches[i], p);
      for (const Event& e : batches[i].events) {
        add_row(events, id, batches[i], e);
        if (const auto of_job = job_labels_of(e)) labels[{id, of_job->job}] = *of_job;
      }
      stored += {1, 0, std::ssize(batches[i].periods), std::ssize(batches[i].events)};
    }
    db_->copy("COPY energy_periods FROM STDIN", periods);
    db_->copy("COPY energy_events FROM STDIN", events);
    enter_labels(labels);
    ArrayLiteral id_list, numbers;
    for (const auto& [key, number] : last) id_list.add(std::to_string(ids[key])), numbers.add(std::to_string(number));
    (void)db_->run(
        "UPDATE energy_sessions SET last_seq = n FROM unnest($1::bigint[], $2::bigint[]) AS k (i, n) WHERE "
        "id = i AND last_seq <> n",
        {id_list.text(), numbers.text()});
    transaction.commit();
    stored.duplicates = std::ssize(batches) - stored.batches;
    return stored;
  }

  // Labels by session and job; of one session, the last that it told of a job.
  using Told = std::map<std::pair<std::int64_t, std::string>, JobLabels>;

  void enter_labels(const Told& told) {
    if (told.empty()) return;
    ArrayLiteral sessions, jobs, groups, accounts, tags;
    for (const auto& [key, labels] : told) {
      sessions.add(std::to_string(key.first)), jobs.add(labels.job);
      groups.add(labels.group), accounts.add(labels.account), tags.add(labels.tag);
    }
    (void)db_->run(
        "INSERT INTO energy_jobs SELECT s, j, NULLIF(g, ''), NULLIF(a, ''), NULLIF(t, '') FROM unnest($1::bigint[], "
        "$2::text[], $3::text[], $4::text[], $5::text[]) AS k (s, j, g, a, t) ON CONFLICT (session_id, job) DO UPDATE "
        "SET group_name = EXCLUDED.group_name, account = EXCLUDED.account, tag = EXCLUDED.tag",
        {sessions.text(), jobs.text(), groups.text(), accounts.text(), tags.text()});
  }

  void enter_told_labels() {
    const PostgresRows rows = db_->run(labels_told().c_str());
    Told told;
    for (int i = 0; i < PQntuples(rows.get()); ++i)
      if (const auto labels = job_labels_of({0, "job_labels", PQgetvalue(rows.get(), i, 1), 0}))
        told[{std::stoll(PQgetvalue(rows.get(), i, 0)), labels->job}] = *labels;
    enter_labels(told);
  }

  std::vector<LimitOrder> answer_now(std::span<const Question> questions, double now_s) {
    // In order of the nodes, so that two collectors lock their rows in one order.
    std::map<std::string, const Limitable*> last;
    for (const Question& q : questions) last[q.node] = &q.limits;
    PostgresTransaction transaction(*db_);
    std::map<std::string, LimitOrder> of;
    for (const auto& [node, limits] : last) {
      (void)db_->run(
          "INSERT INTO energy_limitable VALUES ($1, $2, $3) ON CONFLICT (node) DO UPDATE SET time_s = EXCLUDED.time_s, "
          "limitable = EXCLUDED.limitable",
          {node, fmt::format("{}", now_s), to_json(*limits).dump()});
      const PostgresRows row = db_->run("SELECT until_s, limits FROM energy_limits WHERE node = $1", {node});
      if (PQntuples(row.get()) == 1)
        of[node] = order_from_row(PQgetvalue(row.get(), 0, 1), std::stod(PQgetvalue(row.get(), 0, 0)), now_s, node);
    }
    transaction.commit();
    std::vector<LimitOrder> orders;
    for (const Question& q : questions) orders.push_back(of[q.node]);
    return orders;
  }

  Stored order_now(std::span<const NodeOrder> orders) {
    PostgresTransaction transaction(*db_);
    for (const NodeOrder& o : orders)
      (void)db_->run(
          "INSERT INTO energy_limits VALUES ($1, $2, $3) ON CONFLICT (node) DO UPDATE SET until_s = EXCLUDED.until_s, "
          "limits = EXCLUDED.limits",
          {o.node, fmt::format("{}", o.until_s), to_json(o.limits).dump()});
    transaction.commit();
    return {};
  }

  const std::string uri_;  // may hold a password: never printed
  std::string name_ = "PostgreSQL";
  std::unique_ptr<Session> db_;
};

void require_uri(const std::string& uri) {
  char* why = nullptr;
  PQconninfoOption* const parsed = PQconninfoParse(uri.c_str(), &why);
  if (parsed == nullptr) {
    PQfreemem(why);
    // libpq may quote the URI or a part of it, which may be a password, so its words are not repeated.
    throw UsageError(
        "--database: this is no URI of PostgreSQL; write postgresql://USER@HOST/DATABASE, with %25 for a %");
  }
  PQconninfoFree(parsed);
}

}  // namespace

std::unique_ptr<Database> open_postgres(const std::string& uri) {
  require_uri(uri);
  auto database = std::make_unique<PostgresDatabase>(uri);
  try {
    database->connect();
  } catch (const PostgresFailure& error) {
    throw Error("{}: {}", database->name(), error.what());
  }
  return database;
}

DatabaseRows postgres_rows(const std::string& uri, const std::string& sql) {
  require_uri(uri);
  std::string name = "PostgreSQL";
  try {
    Session db(uri);
    name = db.place();
    if (!postgres_version_there(db, name)) throw no_tables(name);
    for (const LaterTables& tables : later_tables()) (void)postgres_version_there(db, tables, name);
    const PostgresRows found = db.run(sql.c_str());
    DatabaseRows rows;
    for (int i = 0; i < PQntuples(found.get()); ++i) {
      auto& row = rows.emplace_back();
      for (int j = 0; j < PQnfields(found.get()); ++j) {
        const bool null = PQgetisnull(found.get(), i, j) != 0;
        row.push_back(null ? std::nullopt : std::optional<std::string>(PQgetvalue(found.get(), i, j)));
      }
    }
    return rows;
  } catch (const PostgresFailure& error) {
    throw Error("{}: {}", name, error.what());
  }
}

}  // namespace molen::collect
