//! A database whose log is written this way, beside one that is not: nobody can tell them apart, whoever looks.

use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::{Connection, OpenFlags};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("twicesafe-vfs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn database(&self) -> PathBuf {
        self.0.join("database")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens a database our way. With a cache so small, pages of a long transaction go to the log before it ends.
fn ours(path: &Path) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let name = crate::name().expect("SQLite takes it");
    let connection = Connection::open_with_flags_and_vfs(path, flags, name).expect("a database");
    let set_up = "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = 10;
        CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x BLOB, n INTEGER NOT NULL DEFAULT 0);
        CREATE INDEX IF NOT EXISTS t_by_n ON t (n, id)";
    connection.execute_batch(set_up).expect("it can be written");
    connection
}

/// Each statement by itself; transactions are committed our way.
fn run(connection: &Connection, sql: &str) {
    for one in sql.split(';').map(str::trim).filter(|one| !one.is_empty()) {
        let ran = if one == "COMMIT" { crate::commit(connection) } else { connection.execute_batch(one) };
        ran.unwrap_or_else(|error| panic!("{one}: {error}"));
    }
}

/// Everything in it, as somebody sees it who opens it the usual way, if it is sound.
fn seen(path: &Path) -> Vec<(i64, i64, i64)> {
    let connection = Connection::open(path).expect("a database");
    let sound: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("an answer");
    assert_eq!(sound, "ok");
    let mut rows = connection.prepare("SELECT id, n, length(x) FROM t ORDER BY id").expect("SQL");
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).expect("rows");
    rows.collect::<Result<_, _>>().expect("rows")
}

#[test]
fn whoever_looks_sees_every_transaction_that_ended_and_nothing_of_the_others() {
    for synchronous in ["FULL", "NORMAL", "OFF"] {
        let folder = Folder::new(&format!("whole-{synchronous}"));
        let (path, usual) = (folder.database(), folder.0.join("usual"));
        let connections = [ours(&path), ours_in_the_usual_way(&usual)];
        let both = |sql: &str| {
            connections.iter().for_each(|connection| run(connection, sql));
            seen(&usual)
        };
        let check = |sql: &str| assert_eq!(both(sql), seen(&path), "{synchronous}: {sql}");
        check(&format!("PRAGMA synchronous = {synchronous}"));
        check("INSERT INTO t (x) VALUES (zeroblob(10))");
        // Far more than the cache and than what is gathered at a time.
        let many = "INSERT INTO t (x, n) WITH RECURSIVE s (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < 300)
            SELECT zeroblob(i * 7), i % 11 FROM s;";
        check(&format!("BEGIN; {many} COMMIT"));
        check("BEGIN IMMEDIATE; DELETE FROM t WHERE n = 3; UPDATE t SET n = n + 1; ROLLBACK");
        // Pages that went to the log early change again, and their checksums there with them.
        check(
            "BEGIN; UPDATE t SET n = n + 1; UPDATE t SET n = n * 2; UPDATE t SET n = n - 1, x = zeroblob(50); COMMIT",
        );
        check(
            "BEGIN; SAVEPOINT s; UPDATE t SET n = 7; ROLLBACK TO s; DELETE FROM t WHERE id % 2 = 0; COMMIT",
        );
        check("PRAGMA wal_checkpoint(RESTART)");
        check(&format!("BEGIN; {many} UPDATE t SET n = 5 WHERE id < 50; COMMIT"));
        check("PRAGMA wal_checkpoint(TRUNCATE)");
        check("UPDATE t SET n = n + 1");
        let others_see = seen(&path);
        run(&connections[0], "BEGIN; UPDATE t SET n = 99, x = zeroblob(3000)");
        assert_eq!(seen(&path), others_see, "what has not ended");
        run(&connections[0], "COMMIT");
        assert!(seen(&path).iter().all(|row| row.1 == 99));
        drop(connections);
        assert!(seen(&path).iter().all(|row| row.1 == 99), "after all have closed it");
    }
}

fn ours_in_the_usual_way(path: &Path) -> Connection {
    drop(ours(path));
    let connection = Connection::open(path).expect("a database");
    run(&connection, "PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = 10");
    connection
}

#[test]
fn what_was_taken_back_is_never_written_over_what_others_have_committed_since() {
    let folder = Folder::new("taken-back");
    let path = folder.database();
    let connection = ours(&path);
    let another = Connection::open(&path).expect("a database");
    run(&another, "PRAGMA wal_autocheckpoint = 0");
    run(&connection, "BEGIN; INSERT INTO t (x) VALUES (zeroblob(100000)); COMMIT");
    for how in ["ROLLBACK", "COMMIT"] {
        // The log begins anew, so that nothing of it has to be read to take this back.
        run(&connection, "PRAGMA wal_checkpoint(RESTART)");
        run(&connection, "BEGIN IMMEDIATE; INSERT INTO t (x) VALUES (zeroblob(100000))");
        run(&connection, how);
        run(&another, "BEGIN; INSERT INTO t (x, n) VALUES (zeroblob(60000), 5); COMMIT");
        let there = seen(&path);
        run(&connection, "PRAGMA cache_size = 9; PRAGMA wal_checkpoint(PASSIVE)");
        assert_eq!(seen(&path), there, "{how}");
        run(&connection, "BEGIN; INSERT INTO t (x) VALUES (zeroblob(10)); COMMIT");
        assert_eq!(seen(&path).len(), there.len() + 1, "{how}");
    }
}

#[test]
fn what_a_killed_process_had_committed_is_there() {
    if let Ok(path) = std::env::var("TWICESAFE_VFS_KILLED") {
        let connection = ours(Path::new(&path));
        for n in 0.. {
            run(
                &connection,
                &format!(
                    "BEGIN; UPDATE t SET n = {n}; INSERT INTO t (x, n) VALUES (zeroblob(900), {n}); COMMIT"
                ),
            );
            std::fs::write(format!("{path}-saying"), n.to_string()).expect("it can be said");
            std::fs::rename(format!("{path}-saying"), format!("{path}-said")).expect("it can be said");
        }
    }
    let folder = Folder::new("killed");
    let path = folder.database();
    drop(ours(&path));
    let said = || std::fs::read_to_string(folder.0.join("database-said")).ok()?.parse::<i64>().ok();
    for _ in 0..5 {
        let _ = std::fs::remove_file(folder.0.join("database-said"));
        let mut child = again("what_a_killed_process_had_committed_is_there", "")
            .env("TWICESAFE_VFS_KILLED", &path)
            .spawn()
            .expect("it starts");
        while said().is_none_or(|n| n < 20) {
            assert!(child.try_wait().expect("a state").is_none(), "it goes on");
            std::thread::yield_now();
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        let said = said().expect("something was said");
        let rows = seen(&path);
        assert!(rows.iter().all(|row| row.1 == rows[0].1), "transactions are whole: {rows:?}");
        assert!(rows[0].1 >= said, "{} is there, and {said} was said", rows[0].1);
        assert!(rows[0].1 <= said + 1);
        run(&Connection::open(&path).expect("a database"), "DELETE FROM t");
    }
}

#[test]
fn a_write_that_fails_is_told_by_whoever_needed_it_and_loses_nothing_else() {
    if let Ok(path) = std::env::var("TWICESAFE_VFS_FULL") {
        let connection = ours(Path::new(&path));
        let log = format!("{path}-wal");
        let insert = |rows: usize| {
            let values = vec!["(zeroblob(3000))"; rows].join(", ");
            connection.execute_batch(&format!("INSERT INTO t (x) VALUES {values}"))
        };
        insert(3).expect("there is room");
        // In the course of a transaction, whose pages do not all stay in the cache.
        limit_files_to(std::fs::metadata(&log).expect("a log").len() + 20_000);
        run(&connection, "BEGIN");
        let inserted = connection.execute_batch("INSERT INTO t (x) VALUES (zeroblob(250000))");
        limit_files_to(u64::MAX);
        assert!(inserted.and_then(|()| crate::commit(&connection)).is_err());
        // At its end.
        limit_files_to(std::fs::metadata(&log).expect("a log").len() + 20_000);
        run(&connection, "PRAGMA cache_size = 1000; BEGIN");
        insert(20).expect("it fits into the cache");
        assert!(crate::commit(&connection).is_err());
        limit_files_to(u64::MAX);
        let _ = connection.execute_batch("ROLLBACK");
        insert(4).expect("there is room again");
        return;
    }
    let folder = Folder::new("full");
    let path = folder.database();
    drop(ours(&path));
    let status =
        again("a_write_that_fails_is_told_by_whoever_needed_it_and_loses_nothing_else", "trap '' XFSZ;")
            .env("TWICESAFE_VFS_FULL", &path)
            .status()
            .expect("it starts");
    assert!(status.success());
    assert_eq!(seen(&path).len(), 7, "what was committed, and nothing of what was not");
}

/// From now on a file of this process that would get longer is not written.
fn limit_files_to(bytes: u64) {
    let limit = rustix::process::Rlimit { current: Some(bytes), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("it can be set");
}

/// This program again, for one test, after what the shell is told first.
fn again(test: &str, first: &str) -> Command {
    let program = std::env::current_exe().expect("a path");
    let mut command = Command::new("sh");
    let run = format!("{first} exec \"$0\" --exact tests::{test} --nocapture");
    command.args(["-c", &run]).arg(program).stdout(std::process::Stdio::null());
    command
}
