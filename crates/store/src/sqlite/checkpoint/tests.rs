//! Checkpoints: what they sync, and what they do after the disk failed.

use std::process::Command;

use super::super::open::writable;
use super::*;
use crate::Options;

#[test]
fn s20_a_disk_that_failed_once_is_not_believed_the_next_time() {
    let folder = std::env::temp_dir().join(format!("twicesafe-checkpoint-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("database");
    let connection = Connection::open(&path).expect("a database");
    let tables = "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (x)";
    connection.execute_batch(tables).expect("it can be written");
    let end_of = |sync: fn(&Connection) -> Result<i64, StoreError>| {
        let (state, stopping) = (AtomicU8::new(COPYING), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| {
                let connection = Connection::open(&path).expect("a database");
                copy(&connection, sync, &state, &stopping);
            });
            while state.load(Ordering::Acquire) == COPYING {
                std::thread::yield_now();
            }
            stopping.store(true, Ordering::Release);
            copying.thread().unpark();
        });
        state.into_inner()
    };
    assert_eq!(end_of(sync), NEARLY_DONE);
    assert_eq!(end_of(|_| Err(StoreError::Away("the disk failed".into()))), GIVEN_UP);

    connection.execute_batch("INSERT INTO t VALUES (zeroblob(8000000))").expect("it can be written");
    let of_log = || std::fs::metadata(path.with_file_name("database-wal")).expect("a log").len();
    let before = of_log();
    let mut checkpointer = Checkpointer::new(&path);
    checkpointer.state.store(GIVEN_UP, Ordering::Release);
    for _ in 0..2 * BATCHES_BETWEEN {
        checkpointer.after_batch(&connection);
    }
    assert!(checkpointer.thread.is_none(), "nobody copies");
    checkpointer.stop(&connection);
    assert_eq!(of_log(), before, "the log keeps everything");
    Checkpointer::new(&path).stop(&connection);
    assert_eq!(of_log(), 0, "otherwise a long one is emptied");
    std::fs::remove_dir_all(&folder).expect("it can go");
}

/// Where the process that strace watches has its file.
const WATCHED: &str = "TWICESAFE_TEST_CHECKPOINT";

/// Runs in a process of its own, which strace watches: a checkpoint in the background during which others write, a new log after
/// it, and the checkpoint that empties the log when the last one closes the file.
#[test]
fn watched() {
    let Some(path) = std::env::var_os(WATCHED).map(PathBuf::from) else { return };
    let (writer, _) = writable(&path, &Options::default()).expect("a ledger");
    writer.execute_batch("CREATE TABLE t (x)").expect("it can be written");
    let write = |blobs: u32| {
        let sql = format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {blobs})
             INSERT INTO t SELECT zeroblob(4000) FROM n"
        );
        writer.execute_batch(&sql).expect("it can be written");
    };
    write(1000);
    let connection = for_checkpoints(&path).expect("a connection");
    let (state, stopping) = (AtomicU8::new(COPYING), AtomicBool::new(false));
    let sync_while_others_write = |connection: &Connection| {
        let synced = sync(connection);
        write(10);
        // What is left is copied, and then it ends.
        stopping.store(true, Ordering::Release);
        std::thread::current().unpark();
        synced
    };
    copy(&connection, sync_while_others_write, &state, &stopping);
    assert_eq!(state.load(Ordering::Acquire), NEARLY_DONE);
    assert_eq!(left(&connection, "NOOP").expect("it can be asked"), 0);
    drop(connection);
    write(1000);
    Checkpointer::new(&path).stop(&writer);
}

#[test]
fn s42_the_log_is_not_given_up_before_what_was_copied_from_it_is_synced() {
    let has_strace = Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success());
    assert!(has_strace, "strace is missing: scripts/services installs it");
    let folder = std::env::temp_dir().join(format!("twicesafe-checkpoint-watched-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-qq", "-e", "trace=write,pwrite64,ftruncate,fsync,fdatasync", "-o"]);
    command.arg(folder.join("trace")).arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", "sqlite::checkpoint::tests::watched"]).env(WATCHED, folder.join("database"));
    let output = command.output().expect("strace runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let trace = std::fs::read_to_string(folder.join("trace")).expect("a trace");
    let (mut is_synced, mut writes, mut logs) = (true, 0, 0);
    for line in trace.lines() {
        let is_about = |file: &str| line.contains(&format!("/{file}>"));
        // The head of a log has 32 bytes; nothing else in it has.
        let ends_a_log = line.contains("ftruncate(") || line.ends_with("= 32");
        if is_about("database") {
            is_synced = line.contains("sync(") && line.ends_with("= 0");
            writes += usize::from(!is_synced);
        } else if is_about("database-wal") && ends_a_log {
            assert!(is_synced, "not synced: {line}");
            logs += 1;
        }
    }
    assert!(writes > 2000, "{writes} writes of the file");
    assert_eq!(logs, 4, "one began, two more began in its place, and the last one was emptied");
    std::fs::remove_dir_all(&folder).expect("it can go");
}
